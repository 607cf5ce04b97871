"""Base of the runners that call a transformers model's own forward: embedding, head, final norm and captured states."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from model_ops.decoding.incremental import FINAL
from model_ops.errors import ModelError
from model_ops.losses.chunked_head import Head

FINAL_NORMS = ("norm", "embedding_norm", "final_layernorm")
"""Names of the final norm in transformers' decoders."""

LENGTH_DEPENDENT = ("dynamic", "longrope")
"""RoPE types whose frequencies change when a row grows past its original length: rows are kept below it, where cached keys stay
valid."""


class TransformersRunner:
    """A causal language model of transformers. Raises ModelError if its blocks, final norm or head are not found."""

    def __init__(self, model: nn.Module):
        self.model, self.config = model, model.config
        self.decoder = model.get_decoder()
        self.layers = getattr(self.decoder, "layers", None)
        self.norm = next((getattr(self.decoder, name) for name in FINAL_NORMS if hasattr(self.decoder, name)), None)
        head = Head.of(model)
        if self.layers is None or self.norm is None or head is None:
            missing = "layers" if self.layers is None else "a final norm" if self.norm is None else "a linear head"
            raise ModelError(f"{self.config.model_type} cannot be decoded here: its decoder has no {missing} of a known "
                             "name")
        self.embedding = model.get_input_embeddings().weight
        self.dtype, self.device = self.embedding.dtype, self.embedding.device
        self.head, self.soft_cap = _scaled(model.get_output_embeddings(), head.scale), head.soft_cap
        self.final_norm = _factor(self.norm, self.config.hidden_size, self.dtype, self.device)
        self.max_positions = max_positions(self.config)

    @torch.no_grad()
    def logits(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens vocab"]:
        """Logits in float32."""
        logits = self.head(hidden).float()
        return logits if self.soft_cap is None else logits.div_(self.soft_cap).tanh_().mul_(self.soft_cap)

    @torch.no_grad()
    def run(self, capture: Sequence[int], **inputs: Any) -> tuple[Tensor, Tensor | None]:
        """The decoder's last hidden states, and the captured states."""
        seen: dict[int, Tensor] = {}

        def keep(place: int, module: nn.Module, given: tuple, named: dict) -> None:
            seen[place] = given[0] if given else named["hidden_states"]

        with ExitStack() as hooks:
            for place in {place for place in capture if place != FINAL}:
                module = self.norm if place == len(self.layers) else self.layers[place]
                handle = module.register_forward_pre_hook(partial(keep, place), with_kwargs=True)
                hooks.callback(handle.remove)
            seen[FINAL] = self.decoder(**inputs).last_hidden_state
        return seen[FINAL], torch.cat([seen[place] for place in capture], dim=-1) if capture else None


def max_positions(config: Any) -> int:
    """Longest row in tokens: the config's, or the original length of a RoPE that changes beyond it."""
    rope = getattr(config, "rope_parameters", None) or {}
    by_layer = [part for part in rope.values() if isinstance(part, dict)]
    longest = config.max_position_embeddings
    for part in by_layer or [rope]:
        if part.get("rope_type") in LENGTH_DEPENDENT:
            original = part.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None)
            longest = min(longest, original or longest)
    return longest


def _scaled(linear: nn.Module, scale: float) -> nn.Module:
    """The head with its scale in its weight, so that whoever reads the weight gets the model's logits."""
    if scale == 1.0:
        return linear
    scaled = nn.Linear(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
    with torch.no_grad():
        for name in ("weight", "bias"):
            if getattr(linear, name) is not None:
                setattr(scaled, name, nn.Parameter(getattr(linear, name) * scale, requires_grad=False))
    return scaled


@torch.no_grad()
def _factor(norm: nn.Module, width: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " hidden"]:
    """Factors of the final norm: its output for alternating signs, whose mean is 0 and size 1 in every norm (Gemma's
    factor is 1 + weight)."""
    signs = torch.ones(width, dtype=dtype, device=device)
    signs[1::2] = -1.0
    return norm(signs[None, None])[0, 0] * signs
