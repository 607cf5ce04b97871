"""Loss of a reward model: Bradley-Terry on pairs of a chosen and a rejected answer.

-log sigma(s_w - s_l - margin) + c (s_w + s_l)^2: margins grow with the difference of grades (Llama 2, arXiv 2307.09288,
equation 2); the second term keeps scores near 0, which the difference alone does not determine (Eisenstein et al., arXiv
2312.09244). A score is read where a segment of the batch ends, never by comparing tokens with padding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from model_ops.documents import Document, PackedRows, to_batch
from model_ops.machine import Precision, products_in
from model_ops.parallel import World
from model_ops.rewards import answer_scores, segment_ends
from model_ops.tensors import Batch, LossOutput, one_term
from model_ops.training import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class RewardBatch(Batch):
    """Documents of pairs: of each, the first segment ends with the chosen answer and the second with the rejected one."""

    margins: Float[Tensor, " pairs"]
    """By how much the chosen score has to be higher."""
    pair_weights: Float[Tensor, " pairs"]


@dataclass(frozen=True)
class PairStreams:
    """Margin and weight of every pair of a plan, in the order of its documents."""

    margins: Float[np.ndarray, " pairs"]
    weights: Float[np.ndarray, " pairs"]

    def added_to(self, document: Document, index: int) -> Document:
        streams = {"margins": self.margins[index : index + 1], "pair_weights": self.weights[index : index + 1]}
        return replace(document, streams={name: values.astype(np.float32) for name, values in streams.items()})


class PairPlan(PackedRows[RewardBatch]):
    """A plan of packed pairs."""

    def __init__(self, documents: Sequence[Document], settings: TrainingSettings, streams: PairStreams):
        super().__init__(documents, settings)
        self.streams = streams

    def _batch_of(self, members: list[int]) -> RewardBatch:
        return to_batch([self.streams.added_to(self.documents[i], i) for i in members], RewardBatch)


def bradley_terry(
    chosen: Float[Tensor, " pairs"],
    rejected: Float[Tensor, " pairs"],
    margins: Float[Tensor, " pairs"] | float = 0.0,
    centring: float = 0.0,
) -> Float[Tensor, " pairs"]:
    """The loss of each pair of scores, in nats."""
    losses = -nn.functional.logsigmoid(chosen - rejected - margins)
    return losses + centring * (chosen + rejected).square() if centring else losses


@dataclass(frozen=True)
class RewardLoss:
    """Weighted Bradley-Terry loss of a batch's pairs; count is the sum of their weights. Also logs accuracy and scores."""

    centring: float = 0.0

    def __call__(self, model: nn.Module, batch: RewardBatch) -> LossOutput:
        pairs = len(batch.row_ids)  # none in a silenced batch
        chosen, rejected = answer_scores(model, batch, segment_ends(batch)[: 2 * pairs]).view(pairs, 2).unbind(1)
        weights = batch.pair_weights[:pairs]
        losses = bradley_terry(chosen, rejected, batch.margins[:pairs], self.centring)
        won = (chosen > rejected).float() + 0.5 * (chosen == rejected).float()
        logged = {"accuracy": won, "chosen_score": chosen.detach(), "rejected_score": rejected.detach()}
        metrics = {name: (weights * values).sum() for name, values in logged.items()}
        return one_term((weights * losses).sum(), weights.sum(), metrics)


def validation_of_pairs(
    model: nn.Module, batches: Sequence[RewardBatch], precision: Precision, world: World
) -> Callable[[], dict[str, float]] | None:
    """The validation function for the trainer: loss without margins and centring (nats per pair) and accuracy, shared by the
    processes of a run; None without batches."""
    if not batches:
        return None
    plain = [replace(batch, margins=torch.zeros_like(batch.margins)) for batch in batches]

    def validate() -> dict[str, float]:
        mine = plain[world.data_rank :: world.data_ranks]
        rounds = -(-len(plain) // world.data_ranks)  # every process makes as many forward passes, as a sharded model needs
        sums = np.zeros(3)
        for batch in [*mine, *[plain[0].silenced()] * (rounds - len(mine))]:
            with products_in(precision, world.device):
                output = RewardLoss()(model, batch.to(world.device))
            loss, won = output.terms["loss"], output.metrics["accuracy"]
            sums += [float(loss.sum), float(won.sum), float(loss.count)]
        loss_sum, won_sum, count = world.totals(sums.tolist())
        return {"validation_loss": loss_sum / count, "validation_accuracy": won_sum / count} if count else {}

    return validate
