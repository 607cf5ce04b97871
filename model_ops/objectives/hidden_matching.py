"""Hidden-state matching (intermediate-layer distillation): a student's blocks learn the teacher's hidden states.

    loss = HiddenStateMatching(distillation_loss(teacher, Divergence()), teacher, segment_ends([0, 2, 5], depth=8), weight=1.0)

The student's block i is the teacher's layer k_i and stands for a segment of the teacher: its own layer and the removed layers
up to k_(i+1). Its output is compared with the teacher's residual stream at the end of the segment; the last block's with the
output of the teacher's last layer. The error of a token is |student - teacher|^2 / |teacher|^2, the mean over blocks: MSE
(TinyBERT, arXiv 1909.10351, equation 8; Minitron, arXiv 2407.14679, section 2.3) relative to the token's own norm, because
norms of tokens and layers differ by orders of magnitude. Every token counts, not only targets: the states of the context are
what later tokens attend to.

The wrapped loss asks the teacher first, then the student. A teacher's state lives until the student's block has been compared
with it; for the backward pass the difference remains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from model_ops.families import layer_list
from model_ops.jobs import ModelError
from model_ops.models import document_groups
from model_ops.tensors import IGNORED, Batch, Loss, LossOutput, Mean

SMALLEST = 1e-12
"""Smallest squared norm that is divided by."""


def segment_ends(layers: Sequence[int], depth: int) -> list[int]:
    """The teacher's layer whose output each of the student's blocks has to reach. layers: those kept of `depth`, ascending."""
    return [following - 1 for following in layers[1:]] + [depth - 1]


class HiddenStateMatching:
    """A distillation loss with one more term, `weight` times the mean error of hidden states (a
    model_ops.tensors.loss.LossOfTerms).

    loss: has one term and calls the teacher before the student, in one process. channels: those of the teacher's residual
    stream that a narrower student keeps; None: all. Logs hidden_error, the mean error without the weight.
    """

    def __init__(
        self,
        loss: Loss,
        teacher: PreTrainedModel,
        ends: Sequence[int],
        weight: float,
        channels: Int[Tensor, " kept"] | None = None,
    ):
        layers = layer_list(teacher)[1]
        self._loss, self._weight, self._channels = loss, weight, channels
        self._taught = [layers[end] for end in ends]

    def counts(self, batch: Batch) -> Mapping[str, Tensor | float]:
        """Counts of the two terms: the weights of the targets (logits), the tokens (hidden states)."""
        return {"logits": batch.weights[batch.labels != IGNORED].sum(), "hidden": batch.tokens}

    def __call__(self, student: nn.Module, batch: Batch) -> LossOutput:
        taught: deque[Tensor] = deque()
        errors: list[Tensor] = []

        def compare(state: Tensor) -> None:
            if not taught or state.ndim != 3 or taught[0].shape != state.shape:
                raise ModelError(
                    f"hidden states of {type(student).__name__} cannot be matched, because its layers do not "
                    "return one state for each token: set student.hidden_weight to 0"
                )
            errors.append(relative_error(state, taught.popleft()))

        learning = layer_list(student)[1]
        with on_output(self._taught, lambda state: taught.append(self._kept(state))), on_output(learning, compare):
            output = self._loss(student, batch)
        (mean,) = output.terms.values()
        error = summed(errors, batch) / len(self._taught)
        return LossOutput(
            {"logits": mean, "hidden": Mean(self._weight * error, batch.tokens)},
            {**output.metrics, "hidden_error": Mean(error.detach(), batch.tokens)},
        )

    def _kept(self, state: Tensor) -> Tensor:
        return state if self._channels is None else state[..., self._channels.to(state.device)]


def relative_error(
    state: Float[Tensor, "rows tokens hidden"], wanted: Float[Tensor, "rows tokens hidden"]
) -> Float[Tensor, "rows tokens"]:
    """|state - wanted|^2 / |wanted|^2 of each token, in float32."""
    wanted = wanted.float()
    return (state.float() - wanted).square().sum(-1) / wanted.square().sum(-1).clamp_min(SMALLEST)


def summed(errors: Sequence[Float[Tensor, "rows tokens"]], batch: Batch) -> Float[Tensor, ""]:
    """The sum over tokens and blocks. Models that compute each document as a row of its own
    (model_ops.models.isolation) call their blocks once for each group of documents, and padding does not count."""
    if errors[0].shape == (1, batch.tokens):
        return torch.cat(list(errors)).sum()
    groups = document_groups(tuple(batch.document_lengths), batch.input_ids.device)
    blocks = len(errors) // len(groups)
    return torch.stack([error.flatten()[groups[place // blocks].kept].sum() for place, error in enumerate(errors)]).sum()


@contextmanager
def on_output(blocks: Sequence[nn.Module], receive: Callable[[Tensor], None]) -> Iterator[None]:
    """Hands the hidden states that each block returns to `receive`, within the context."""

    def hook(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
        receive(output[0] if isinstance(output, tuple) else output)

    with ExitStack() as stack:
        for block in blocks:
            stack.callback(block.register_forward_hook(hook).remove)
        yield
