"""The interface of every drafter: batches of documents, training forward, decoding, saving and loading.

    outputs = model.unroll(documents, steps)                      # training: what each draft step's head reads
    rows, weight = model.scored(outputs[0].flatten(0, 1), 0)      # logits of step 0 are rows @ weight.T
    answers = decode(target, ..., drafter=model.drafter(), num_speculative_tokens=3)

At index j of a document a drafter knows the target's hidden states at j and before, and the tokens up to x[j+1]; its step k
predicts x[j+2+k]. A server hands over the same after each verification.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Bool, Float, Int
from pydantic import BaseModel
from torch import Tensor, nn

from model_ops.decoding import Drafter, Runner


class DraftModel(nn.Module, ABC):
    """The weights of a drafter. Its `config` determines the shape of every tensor."""

    config: BaseModel
    trained_for: ClassVar[tuple[str, ...]] = ()
    """Config fields that the weights depend on although no tensor's shape shows them."""
    kind: str = ""
    """Name of its architecture in recipes and reports. The factory sets it."""

    @property
    @abstractmethod
    def capture(self) -> tuple[int, ...]:
        """Block boundaries of the target whose states it reads; empty if it reads none."""

    @property
    def longest_chain(self) -> int | None:
        """Most tokens it can draft per verification; None if its last step can be repeated without limit."""
        return None

    @property
    @abstractmethod
    def target_ids(self) -> Int[Tensor, " draft_vocab"]:
        """The target's token id of every draft id, ascending."""

    @abstractmethod
    def unroll(self, documents: DocumentWindows, steps: int) -> list[Float[Tensor, "documents window hidden"]]:
        """Training forward: for each draft step, the states that its head reads, at every entry of the window."""

    @abstractmethod
    def scored(
        self, hidden: Float[Tensor, "*rows hidden"], step: int
    ) -> tuple[Float[Tensor, "*rows width"], Float[Tensor, "draft_vocab width"]]:
        """The two factors of a step's logits, rows @ weight.T, from rows of `unroll(...)[step]`; float32."""

    def attach(self, target: Runner) -> Self:
        """Take embedding and head from the target, for architectures whose files hold neither; returns self.

        Needed after `load_draft_model`, before `drafter`, `unroll` and `scored`; a new drafter is attached already.
        """
        return self

    def ready_to_draft(self, dtype: torch.dtype) -> Self:
        """Switch to inference with weights in `dtype`; returns self.

        Buffers keep their dtype: rotary frequencies rounded to bfloat16 would encode other positions.
        """
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)
        return self.eval().requires_grad_(False)

    @abstractmethod
    def drafter(self, greedy: bool = False) -> Drafter:
        """The drafter for the decoder. greedy: always propose the most likely token, as servers do that do not sample drafts
        (vLLM's default); otherwise sample at the temperature of the answers."""

    def save(
        self,
        directory: Path,
        num_speculative_tokens: int,
        dtype: torch.dtype = torch.bfloat16,
        verifier: str = "target",
        verifier_architectures: list[str] | None = None,
    ) -> None:
        """Write the directory that servers load, weights in `dtype`. verifier: path or Hub id of the target, for the server's
        config."""
        self.write(directory, SaveOptions(num_speculative_tokens, dtype, verifier, verifier_architectures or []))

    @abstractmethod
    def write(self, directory: Path, options: SaveOptions) -> None:
        """See `save`."""

    @classmethod
    @abstractmethod
    def new(cls, settings: Any, target: Runner, target_ids: Int[Tensor, " draft_vocab"]) -> DraftModel:
        """A new drafter on the target's device from resolved settings of its architecture. target_ids: of the draft
        vocabulary."""

    @classmethod
    @abstractmethod
    def from_config(cls, directory: Path, raw: dict[str, Any]) -> DraftModel:
        """Build the module that a config.json describes, without weights. Raises ModelError for a missing or wrong field."""

    def stored(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The module's state dict from the tensors of a file; override where the file's names differ."""
        return weights


@dataclass(frozen=True)
class SaveOptions:
    """How a drafter is saved, as `DraftModel.save` says."""

    num_speculative_tokens: int
    dtype: torch.dtype
    verifier: str
    verifier_architectures: list[str]


@dataclass(frozen=True)
class DocumentWindows:
    """Documents padded on the right to one length, and the window of each that step 0 is trained on.

    Entry a of a window has index j = start + a.

    ids: tokens x[0..]
    captured: the target's hidden states at the block boundaries that the drafter reads
    start: index j of each window's first entry
    window: number of entries in the longest window
    windows: number of entries of each window; None: all windows have the longest length
    anchors: the entries at which a block drafter begins a block; None: all
    on_host: start and windows as lists, where the caller has them: reading them from an accelerator waits for it
    """

    ids: Int[Tensor, "documents tokens"]
    captured: Float[Tensor, "documents tokens captured_hidden"]
    start: Int[Tensor, " documents"]
    window: int
    windows: Int[Tensor, " documents"] | None = None
    anchors: Bool[Tensor, "documents window"] | None = None
    on_host: tuple[list[int], list[int]] | None = None
