"""The training loss of a drafter, and its metrics: alpha_k, the mean probability that draft k is accepted; draft_mass, the
target's probability of the draft vocabulary, an upper bound of alpha; and expected_tau. LK-lambda's lambda of a step is
exp(-eta alpha_k), alpha_k a running mean (weight FOLLOWED on the past) from 0, KL alone; one lambda per position spends steps
on the least predictable."""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from model_ops.jobs import filled
from model_ops.parallel import World
from model_ops.speculators.draft_model import DraftModel
from model_ops.speculators.losses.chain_loss import ChainLoss, DraftStep, Teacher, chain_loss
from model_ops.speculators.losses.speculator_losses import expected_acceptance_length
from model_ops.speculators.settings import SpeculatorSettings
from model_ops.speculators.states.hidden_states import AnswerRow
from model_ops.speculators.states.speculator_batches import (
    DraftBatch,
    StateSource,
    chosen_anchors,
    documents_of,
    make_batch,
    micro_batches,
    supervised,
)
from model_ops.tensors import IGNORED, Batch, LossOutput, Mean

FOLLOWED = 0.9
"""Weight of the past in the running mean of alpha, which is so one of about ten optimizer steps."""


class SpeculatorLoss:
    """The trainer's loss: the sum over draft steps of their weight times the loss at every supervised index. The sum is divided
    by step 0's count, so a later draft step, which has fewer indices, weighs less."""

    def __init__(self, teacher: Teacher, settings: SpeculatorSettings):
        self.teacher, self.settings = teacher, settings
        self.steps, self.eta = filled(settings.ttt_steps), filled(settings.eta)
        self._alphas = [0.0] * self.steps

    def after_step(self, numbers: Mapping[str, float]) -> None:
        """Update the running acceptance from an optimizer step's metrics; they are the same on every process."""
        alphas = [numbers.get(f"alpha_{step}", math.nan) for step in range(len(self._alphas))]
        self._alphas = [
            FOLLOWED * before + (1 - FOLLOWED) * now if math.isfinite(now) else before
            for before, now in zip(self._alphas, alphas, strict=True)
        ]

    def state(self) -> dict[str, list[float]]:
        """State for a checkpoint."""
        return {"alphas": self._alphas}

    def resume(self, state: Mapping[str, list[float]]) -> None:
        """Restore the state of a checkpoint."""
        self._alphas = list(state["alphas"])

    def __call__(self, model: DraftModel, batch: Batch) -> LossOutput:
        settings = self.settings
        if not isinstance(batch, DraftBatch):
            raise TypeError(f"a drafter is trained on batches with hidden states, not on {type(batch).__name__}")
        drafts = drafts_of(model, batch, self.steps, settings.positions_per_answer)
        result = chain_loss(
            settings.loss,
            drafts,
            self.teacher,
            batch.last,
            settings.weights_of_steps(len(drafts)),
            batch.labels[batch.labels != IGNORED],
            self.eta,
            None if settings.lambda_of == "position" else self._kl_shares(len(drafts)),
        )
        chains = whole_chains(result, drafts)
        entries = {f"alpha_{step}": alpha for step, alpha in enumerate(result.alphas)}
        entries |= {"expected_tau": expected_acceptance_length(chains), "draft_mass": result.mass}
        heard = int(bool(batch.row_ids))  # a batch without targets runs through the model, but counts 0
        return LossOutput(
            {"loss": Mean(heard * result.total, heard * sum(batch.on_host[1]))},
            {name: Mean(heard * values.sum(), heard * len(values)) for name, values in entries.items()},
        )

    def _kl_shares(self, steps: int) -> list[float]:
        return [math.exp(-self.eta * alpha) for alpha in self._alphas[:steps]]


@torch.no_grad()
def measure_alpha(
    model: DraftModel, teacher: Teacher, rows: list[AnswerRow], states: StateSource, drafts: int, world: World | None = None
) -> dict[str, float]:
    """Mean acceptance probability of each draft of a chain along the true text, and the expected acceptance length. Processes
    of a world share the rows, and all of them return the same numbers."""
    device = model.target_ids.device
    sums, counts = torch.zeros(drafts, dtype=torch.float64, device=device), [0.0] * drafts
    length_sum, chains = torch.zeros((), dtype=torch.float64, device=device), 0
    order = sorted(range(len(rows)), key=lambda row: len(rows[row].ids))
    world = world or World.alone(device)
    for members in micro_batches(rows, order)[world.data_rank :: world.data_ranks]:
        batch = make_batch(rows, states, members).to(device)
        steps = drafts_of(model, batch, drafts)
        result = chain_loss("tv", steps, teacher, batch.last)
        for step, alpha in enumerate(result.alphas):
            sums[step] += alpha.sum()
            counts[step] += len(alpha)
        whole = whole_chains(result, steps)
        length_sum += expected_acceptance_length(whole).sum()
        chains += len(whole)
    *totals, lengths, whole_count = world.totals([*sums.tolist(), *counts, float(length_sum), float(chains)])
    pairs = zip(totals[:drafts], totals[drafts:], strict=True)
    alphas = {f"validation_alpha_{step}": total / count for step, (total, count) in enumerate(pairs) if count}
    return {**alphas, "validation_expected_tau": lengths / whole_count} if whole_count else alphas


def drafts_of(model: DraftModel, batch: DraftBatch, steps: int, anchors: int | None = None) -> list[DraftStep]:
    """Inputs of each draft step's head at every supervised index, with the teacher's positions. anchors: number of indices to
    sample per window, which batch.order decides. An answer's sample stands for all its indices."""
    windows, documents, drafts = batch.windows, documents_of(batch), []
    if anchors is not None:
        documents = replace(documents, anchors=chosen_anchors(windows, batch.order, anchors))
    if documents.anchors is None:  # computed beside an accelerator, which would wait for each count of entries
        of_host = torch.tensor(batch.on_host[1])
        indices = [tuple(each.to(windows.device) for each in supervised(of_host, step)) for step in range(steps)]
    else:
        indices = [supervised(windows, step, documents.anchors) for step in range(steps)]
    for step, hidden in enumerate(model.unroll(documents, steps)):
        entries, rows = indices[step]
        states, head = model.scored(hidden.flatten(0, 1)[entries], step)
        stands_for = None
        if anchors is not None:
            answer = entries // documents.window
            stands_for = ((windows - step).clamp(min=0) / answer.bincount(minlength=len(windows)))[answer]
        drafts.append(DraftStep(states, head, rows, stands_for))
    return drafts


def whole_chains(result: ChainLoss, drafts: list[DraftStep]) -> Tensor:
    """alpha of every step, [chains, steps], for the chains that fit into their window. The chain of index j has the teacher of
    index j + k at step k. A chain is complete if its last step has a teacher."""
    last = drafts[-1].rows - (len(drafts) - 1)
    return torch.stack(
        [
            alpha[torch.searchsorted(draft.rows, last + step)]
            for step, (draft, alpha) in enumerate(zip(drafts, result.alphas, strict=True))
        ],
        dim=1,
    )
