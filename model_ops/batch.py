"""A batch: aligned token streams of several documents; and a source of batches, by optimizer step.

    batch = to_batch(documents)              # model_ops.training.documents

    @dataclass(frozen=True, kw_only=True)
    class PreferenceBatch(Batch):            # an objective that reads more declares it
        reference_logprobs: Float[Tensor, " tokens"] = field(metadata={"padding": 0})

Whatever cuts, pads or moves a batch does so with every declared stream, so an objective's own streams need no code here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

IGNORED = -100
"""A label that asks for no prediction."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch: documents laid end to end, as aligned streams of one value per token.

    labels[t] is the token to predict AT position t (already shifted), IGNORED where there is none; the last token of a
    document never has one. Documents do not see each other: `document_lengths` says where each begins. A field with
    "padding" in its metadata is a token stream: one entry per token, and that value where a row is filled up.
    """

    input_ids: Int[Tensor, " tokens"] = field(metadata={"padding": 0})
    position_ids: Int[Tensor, " tokens"] = field(metadata={"padding": 0})
    labels: Int[Tensor, " tokens"] = field(metadata={"padding": IGNORED})
    weights: Float[Tensor, " tokens"] = field(metadata={"padding": 0})
    document_lengths: list[int]
    row_ids: list[str]
    context: Any = None
    """The processes that share this row's tokens (model_ops.parallel.context_parallel); None where no others do."""

    @property
    def tokens(self) -> int:
        """Number of tokens, padding included."""
        return self.input_ids.numel()

    @property
    def model_inputs(self) -> dict[str, object]:
        """What a model loaded with attention="packed" is called with."""
        shared = {} if self.context is None else {"context_parallel": self.context}
        return {
            "input_ids": self.input_ids[None],
            "position_ids": self.position_ids[None],
            "use_cache": False,
            "document_lengths": self.document_lengths,
            **shared,
        }

    @classmethod
    def paddings(cls) -> dict[str, float]:
        """Name of every token stream -> the value it is padded with."""
        return {each.name: each.metadata["padding"] for each in fields(cls) if "padding" in each.metadata}

    def silenced(self) -> Self:
        """The same tokens with nothing to predict: keeps a rank in step with others that have more rows."""
        return replace(self, labels=torch.full_like(self.labels, IGNORED), weights=torch.zeros_like(self.weights),
                       row_ids=[])

    def to(self, device: torch.device) -> Self:
        """The batch with all its tensors on a device."""
        return replace(self, **{each.name: getattr(self, each.name).to(device) for each in fields(self)
                                if isinstance(getattr(self, each.name), Tensor)})


class BatchSource(Protocol):
    """The batches of a run, by optimizer step.

    A source without state is a pure function of the step's index, so a run that was killed needs only the index to continue.
    """

    def __len__(self) -> int:
        """How many optimizer steps there are."""

    def step(self, index: int, rank: int = 0, ranks: int = 1) -> list[Batch]:
        """The micro-batches of step `index` that data rank `rank` of `ranks` takes.

        Without state always the same ones for the same index. The rows of all ranks together do not depend on `ranks`; every
        rank gets equally many micro-batches, silent ones where its rows are fewer.
        """


@runtime_checkable
class StatefulSource(Protocol):
    """A source whose next step depends on more than its index: answers sampled from the model in training, a buffer, a
    generator. The trainer asks it for each step once, in order, after the update of the step before, never ahead of time. Its
    state is part of every checkpoint and must be the same on every process."""

    def __len__(self) -> int:
        """How many optimizer steps there are."""

    def step(self, index: int, rank: int = 0, ranks: int = 1) -> list[Batch]:
        """The micro-batches of step `index`, as `BatchSource.step` says; the state moves on."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as JSON takes it."""

    def resume(self, state: dict[str, Any]) -> None:
        """Continues from a kept state: the next step is the one that would have followed it."""
