"""Interface of a loss: named terms over one micro-batch, each with its own sum and count.

    def loss(model, batch) -> LossOutput:
        return one_term(total, count, {"token_accuracy": hits})

Sums and counts are added over all micro-batches and processes of a step before the division, so the gradient of a step does
not depend on the number of micro-batches or processes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Num
from torch import Tensor, nn

from model_ops.tensors.batch import AnyBatch, Batch


@dataclass(frozen=True)
class Mean:
    """A micro-batch's share of a mean over a step: the sum and the number of values in it."""

    sum: Num[Tensor, ""] | float
    count: Num[Tensor, ""] | float


@dataclass(frozen=True)
class LossOutput:
    """A loss over one micro-batch.

    terms are differentiated: a step minimises the sum of their means. A loss with several terms implements LossOfTerms.
    metrics are logged only, each as its mean over the step. Every process and micro-batch has the same names, in the same
    order; a term or metric without values has count 0.
    """

    terms: Mapping[str, Mean]
    metrics: Mapping[str, Mean] = field(default_factory=dict)


Loss = Callable[[nn.Module, AnyBatch], LossOutput]
"""Of batches of one class, which declares the streams that the loss reads."""


def one_term(
    total: Float[Tensor, ""], count: Num[Tensor, ""] | float, metrics: Mapping[str, Tensor | float] | None = None
) -> LossOutput:
    """The output of a loss with one term; `metrics` are sums over the same `count` values."""
    return LossOutput({"loss": Mean(total, count)}, {name: Mean(value, count) for name, value in (metrics or {}).items()})


@runtime_checkable
class LossOfTerms(Protocol):
    """A loss with several terms. Each is divided by its own global count, which must be known before the first backward
    pass."""

    def __call__(self, model: nn.Module, batch: Batch) -> LossOutput: ...

    def counts(self, batch: Batch) -> Mapping[str, Tensor | float]:
        """The count of every term for this micro-batch, computed from its streams only."""


@runtime_checkable
class LearningLoss(Protocol):
    """A loss that adapts during training. Its state is part of every checkpoint."""

    def __call__(self, model: nn.Module, batch: Batch) -> LossOutput: ...

    def after_step(self, numbers: Mapping[str, float]) -> None:
        """Receives the loss and metrics of an optimizer step after its update; they are the same on every process."""

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON values."""

    def resume(self, state: Mapping[str, Any]) -> None:
        """Restores a state that `state` returned."""
