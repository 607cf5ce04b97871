"""What the trainer minimises: a loss over one micro-batch, as named terms, each with its own sum and count.

    def loss(model, batch) -> LossOutput:
        return one_term(total, count, {"token_accuracy": hits})

Sums and counts are added over all micro-batches of a step, and over all processes, before the division: the gradient of a step
does not depend on how it is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from model_ops.batch import Batch


@dataclass(frozen=True)
class Mean:
    """A micro-batch's part of a mean over a step: what is added up, and how many values that were."""

    sum: Float[Tensor, ""] | float
    count: Float[Tensor, ""] | float


@dataclass(frozen=True)
class LossOutput:
    """A loss over one micro-batch.

    terms are differentiated: what a step minimises is the sum of their means. A loss of several terms is a LossOfTerms.
    metrics are only logged, each as its mean over the step.
    """

    terms: Mapping[str, Mean]
    metrics: Mapping[str, Mean] = field(default_factory=dict)


Loss = Callable[[nn.Module, Batch], LossOutput]


def one_term(total: Float[Tensor, ""], count: Float[Tensor, ""] | float,
             metrics: Mapping[str, Tensor | float] | None = None) -> LossOutput:
    """The output of a loss of a single term; `metrics` are sums over the same `count` values."""
    return LossOutput({"loss": Mean(total, count)}, {name: Mean(value, count) for name, value in (metrics or {}).items()})


@runtime_checkable
class LossOfTerms(Protocol):
    """A loss of several terms. Each is divided by its own global count, which therefore has to be known before the first
    backward pass."""

    def __call__(self, model: nn.Module, batch: Batch) -> LossOutput: ...

    def counts(self, batch: Batch) -> Mapping[str, Tensor | float]:
        """The count of every term for this micro-batch, from its streams alone."""


@runtime_checkable
class LearningLoss(Protocol):
    """A loss that changes with what the training has seen. Its state is part of every checkpoint."""

    def __call__(self, model: nn.Module, batch: Batch) -> LossOutput: ...

    def after_step(self, numbers: Mapping[str, float]) -> None:
        """Gets the loss and metrics of an optimizer step whose update was made; they are the same on every process."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as JSON takes it."""

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continues from a kept state."""
