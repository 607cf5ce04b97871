"""A batch of aligned token streams of several documents, what yields batches for each step, and the interface of a loss.

@dataclass(frozen=True, kw_only=True)
class PreferenceBatch(Batch):            # an objective with more streams declares them; they are cut, padded and moved too
    reference_logprobs: Float[Tensor, " tokens"] = field(metadata={"padding": 0})
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

IGNORED = -100
"""Label of a position without a prediction target."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch: documents laid end to end, as aligned streams of one value per token. labels[t] is the token to predict
    AT position t (already shifted), or IGNORED; the last token of a document has no label. Attention stays within a document;
    `document_lengths` gives their boundaries. A field with "padding" in its metadata is a token stream: one entry per token,
    padded with that value."""

    input_ids: Int[Tensor, " tokens"] = field(metadata={"padding": 0})
    position_ids: Int[Tensor, " tokens"] = field(metadata={"padding": 0})
    labels: Int[Tensor, " tokens"] = field(metadata={"padding": IGNORED})
    weights: Float[Tensor, " tokens"] = field(metadata={"padding": 0})
    document_lengths: list[int]
    row_ids: list[str]
    document_prefixes: list[tuple[int, int]] | None = None
    """(first token, number of tokens) of this batch that each document continues, which it attends to; None: no document
    continues another."""
    context: Any = None
    """Processes that share this row's tokens (model_ops.parallel.mesh); None without context parallelism."""

    @property
    def tokens(self) -> int:
        """Number of tokens, padding included."""
        return self.input_ids.numel()

    @property
    def model_inputs(self) -> dict[str, object]:
        """Keyword arguments for a model loaded with attention="packed"."""
        shared = {} if self.context is None else {"context_parallel": self.context}
        if self.document_prefixes is not None:
            shared["document_prefixes"] = self.document_prefixes
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
        """The same tokens without labels. A rank with fewer rows computes such batches, so that all ranks take part in the
        same collectives."""
        return replace(self, labels=torch.full_like(self.labels, IGNORED), weights=torch.zeros_like(self.weights), row_ids=[])

    def to(self, device: torch.device) -> Self:
        """The batch with all its tensors on a device. Copies to an accelerator do not wait for it."""
        return replace(
            self,
            **{
                each.name: getattr(self, each.name).to(device, non_blocking=device.type != "cpu")
                for each in fields(self)
                if isinstance(getattr(self, each.name), Tensor)
            },
        )


AnyBatch = TypeVar("AnyBatch", bound=Batch)
KindOfBatch = TypeVar("KindOfBatch", bound=Batch, covariant=True)


class BatchSource(Protocol[KindOfBatch]):
    """The batches of a run for each optimizer step. A source without state is a pure function of the step's index, so a run
    that was killed needs only the index to continue."""

    def __len__(self) -> int:
        """How many optimizer steps there are."""

    def step(self, index: int, rank: int = 0, ranks: int = 1) -> Sequence[KindOfBatch]:
        """The micro-batches of step `index` for data rank `rank` of `ranks`. A source without state returns the same batches
        for the same index. The rows of all ranks together do not depend on `ranks`. Every rank gets the same number of
        micro-batches; a rank with fewer rows gets some without labels."""


@runtime_checkable
class StatefulSource(BatchSource[KindOfBatch], Protocol[KindOfBatch]):
    """A source whose next step depends on more than its index, such as rollouts of the model in training or a replay buffer.
    The trainer asks for each step once, in order, after the previous update, never ahead of time: `step` advances the state,
    which is part of every checkpoint and must be the same on every process."""

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON values."""

    def resume(self, state: dict[str, Any]) -> None:
        """Restores a state that `state` returned, so that the next step is the one that followed it."""


@dataclass(frozen=True)
class Mean:
    """A micro-batch's share of a mean over a step: the sum and the number of values in it."""

    sum: Num[Tensor, ""] | float
    count: Num[Tensor, ""] | float


@dataclass(frozen=True)
class LossOutput:
    """A loss over one micro-batch. terms are differentiated: a step minimises the sum of their means. A loss with several terms
    implements LossOfTerms. metrics are logged only, each as its mean over the step. Every process and micro-batch has the same
    names, in the same order; a term or metric without values has count 0."""

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
