"""Chooses how a model is decoded: `IncrementalModel` for the families in `model_ops.families.table.FAST`, `RaggedModel` where
attention is all that connects tokens, else `StatefulModel`, row by row with transformers' own cache."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from model_ops.decoding.incremental import IncrementalModel, runs_fast
from model_ops.decoding.transformers_runner import RaggedModel, StatefulModel
from model_ops.machine import products_dtype
from model_ops.models import keeps_apart

SMALL_PARAMETERS = 100_000_000
"""On a CPU, models with fewer parameters are decoded in float32: bfloat16 is not faster for their small products, and logits
have no ties."""


def decoding_dtype(device: torch.device, parameters: int) -> torch.dtype:
    """The dtype that a model of so many parameters is decoded in: the faster one."""
    return torch.float32 if device.type == "cpu" and parameters < SMALL_PARAMETERS else products_dtype("auto", device)


class DecodingCache(Protocol):
    """A runner's cache of the rows' tokens."""

    lengths: Int[Tensor, " rows"]
    """Visible tokens, by row."""

    def advance(self, tokens: int) -> None:
        """Makes `tokens` more of every row visible."""

    def longest_has(self, tokens: int) -> None:
        """Tells the length of the longest row, after `lengths` was assigned, so that nobody asks the device for it."""

    def hold_room(self, tokens: int, free: int) -> None:
        """Allocates space for `tokens` beyond the longest row, if the device's `free` bytes suffice."""

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Keeps only these rows, in this order."""


Cache = TypeVar("Cache", bound=DecodingCache)


class Runner(Protocol[Cache]):
    """A causal language model over a cache. head.weight gives the logits before the soft cap."""

    config: Any
    max_positions: int
    """Longest row, in tokens."""
    soft_cap: float | None
    """Soft cap of the logits; None without one."""
    embedding: Float[Tensor, "vocab hidden"]
    head: nn.Module
    final_norm: Float[Tensor, " hidden"]
    """Factors of the final norm."""
    dtype: torch.dtype
    device: torch.device

    def new_cache(self, rows: int) -> Cache: ...

    def take_back(self, cache: Cache) -> None:
        """Takes a cache that nobody reads any more."""

    def forward(
        self, ids: Int[Tensor, "rows tokens"], cache: Cache, capture: Sequence[int] = ()
    ) -> tuple[Float[Tensor, "rows tokens hidden"], Float[Tensor, "rows tokens captured_hidden"] | None]:
        """Hidden states after the final norm of the next tokens of every row, and the captured states (None without any)."""

    def logits(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens vocab"]:
        """Logits in float32."""


def new_runner(model: nn.Module) -> Runner[Any]:
    """The fastest exact way to decode a model that was loaded with attention "sdpa" or "eager"; takes the model over."""
    rounds_cache = getattr(model, "rounds_cache", False)  # by hooks of the attention modules, which fused products never call
    if runs_fast(model.config) and not rounds_cache:
        return IncrementalModel(model)
    return RaggedModel(model) if keeps_apart(model) else StatefulModel(model)
