"""What the trainer and its losses speak of: a batch of aligned token streams, the plan of a run, a loss's answer.

    batch = to_batch(documents)              # model_ops.training.documents
    output = next_token_loss(model, batch)   # a Loss: LossOutput(sum, count, metrics)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

IGNORED = -100
"""A label that asks for no prediction."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch: documents laid end to end, as aligned streams of one value per token.

    labels[t] is the token to predict AT position t (already shifted), IGNORED where there is none; the last token of a
    document never has one. Documents do not see each other: `document_lengths` says where each begins.
    """

    input_ids: Int[Tensor, " tokens"]
    position_ids: Int[Tensor, " tokens"]
    labels: Int[Tensor, " tokens"]
    weights: Float[Tensor, " tokens"]
    document_lengths: list[int]
    row_ids: list[str]
    extras: dict[str, Tensor] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.input_ids.numel()

    @property
    def model_inputs(self) -> dict[str, object]:
        """What a model loaded with attention="packed" is called with."""
        return {
            "input_ids": self.input_ids[None],
            "position_ids": self.position_ids[None],
            "use_cache": False,
            "document_lengths": self.document_lengths,
        }

    def silenced(self) -> Batch:
        """The same tokens with nothing to predict: keeps a rank in step with others that have more rows."""
        return replace(self, labels=torch.full_like(self.labels, IGNORED), weights=torch.zeros_like(self.weights),
                       row_ids=[])

    def to(self, device: torch.device) -> Batch:
        moved = {f.name: getattr(self, f.name).to(device) for f in fields(self)
                 if isinstance(getattr(self, f.name), Tensor)}
        return replace(self, **moved, extras={name: value.to(device) for name, value in self.extras.items()})


class BatchPlan(Protocol):
    """The batches of a run, by optimizer step."""

    def __len__(self) -> int:
        """How many optimizer steps there are."""

    def step(self, index: int, rank: int = 0, ranks: int = 1) -> list[Batch]:
        """The micro-batches of step `index` that data rank `rank` of `ranks` takes.

        Always the same ones for the same index; the rows of all ranks together do not depend on `ranks`; every rank
        gets equally many micro-batches, silent ones where its rows are fewer.
        """


@dataclass(frozen=True)
class LossOutput:
    """A loss over one micro-batch: `sum` is what is differentiated, `count` what the step's total is divided by.

    metrics are sums as well, divided in the log by the same count, or by the sum of their own in `metric_counts`: so a mean
    over some of the entries does not depend on how a step is cut.
    """

    sum: Float[Tensor, ""]
    count: Tensor | float
    metrics: dict[str, Tensor | float] = field(default_factory=dict)
    metric_counts: dict[str, float] = field(default_factory=dict)


Loss = Callable[[nn.Module, Batch], LossOutput]


@runtime_checkable
class LearningLoss(Protocol):
    """A loss that changes with what the training has seen. Its state is part of every checkpoint."""

    def __call__(self, model: nn.Module, batch: Batch) -> LossOutput: ...

    def after_step(self, numbers: Mapping[str, float]) -> None:
        """Hears the loss and metrics of an optimizer step whose update was made; they are the same on every process."""

    def state(self) -> dict[str, Any]:
        """What is kept, as JSON takes it."""

    def resume(self, state: Mapping[str, Any]) -> None:
        """Goes on from a kept state."""
