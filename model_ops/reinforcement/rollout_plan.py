"""Steps that learn from rollouts of the model in training: a StatefulSource of RolloutBatch.

Step i learns from its share of round i // sync_steps. The state is the log: a run that continues finds the rounds there, and
checkpoints hold what watch and canary saw. On a mesh the first process has the log and plans each round."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from model_ops.answers import Engine, Rollout, RolloutLog, RolloutMaker, RolloutOutcome, Sampled, SampledPrompt
from model_ops.documents import MICRO_BATCH_TOKENS, Document
from model_ops.graders import Grade, GraderSettings
from model_ops.jobs import ModelError, Progress
from model_ops.parallel import World
from model_ops.reinforcement.canary import PolicyReader, RoundCanary
from model_ops.reinforcement.policy_loss import PolicyLoss
from model_ops.reinforcement.rft_settings import RftSettings
from model_ops.reinforcement.rollout_batches import (
    LearntRollout,
    Numbers,
    RolloutBatch,
    group_documents,
    nll_weight,
    nothing_learnt,
    rollout_batches,
)
from model_ops.reinforcement.rollout_groups import Group, LearntGroup, learnt_ages, learnt_groups, round_numbers
from model_ops.reinforcement.rollout_watch import RolloutWatch
from model_ops.reinforcement.round_asker import AsynchronousAsker, RoundAsker
from model_ops.training import StartWeights


def variance_shares(grades: Sequence[Grade], settings: GraderSettings) -> dict[str, float]:
    """The share of each part in the variance of the grades, by a grader that adds its parts: covariance of the weighted part
    with the grade over the grade's variance, which add up to 1 (a part's share may be below 0). Of answers that have a grade
    and all parts; {} where fewer than two parts are added, or the grades are all equal."""
    names = list(settings.parts)
    whole = [grade for grade in grades if grade.value is not None and set(names) <= grade.parts.keys()]
    if len(names) < 2 or settings.combine != "sum" or len(whole) < 2:
        return {}
    values = np.array([[settings.parts[name].weight * grade.parts[name] for name in names] for grade in whole])
    apart, total = values - values.mean(0), values.sum(1) - values.sum(1).mean()
    variance = float(total @ total)
    return {name: float(apart[:, place] @ total) / variance for place, name in enumerate(names)} if variance > 0 else {}


class RolloutPlan:
    """makers: one for each thread that asks. shares: whether rollouts may continue one computed prompt (model_ops.documents).
    longest: most tokens after a prompt."""

    def __init__(
        self,
        prompts: Sequence[SampledPrompt],
        makers: Sequence[RolloutMaker],
        engine: Engine,
        log: RolloutLog,
        model: nn.Module,
        loss: PolicyLoss,
        settings: RftSettings,
        world: World,
        shares: bool,
        longest: int,
        progress: Progress,
    ):
        self.prompts, self.log, self.settings = prompts, log, settings
        self._loss, self._world, self._shares, self._longest = loss, world, shares, longest
        self._steps, self.done = settings.steps_over(len(prompts), settings.prompts_per_step), 0
        """done: steps, the one that was asked for last included."""
        self._reader = PolicyReader(model, loss, settings.precision, world)
        self._canary = RoundCanary(self._reader, engine, settings.precision, world)
        kind = AsynchronousAsker if settings.max_staleness else RoundAsker
        self.asker = kind(prompts, makers, engine, log, settings, self._canary, progress, self._steps)
        self._micro_batch_tokens = settings.micro_batch_tokens or max(MICRO_BATCH_TOKENS, settings.max_length or 0)
        self._start = StartWeights(model) if settings.kl else None
        self._held: tuple[int, list[LearntGroup], Numbers] = (-1, [], {})
        self._pending: list[int] = []
        self._watch = RolloutWatch(progress, settings.overlong == "mask")

    def __len__(self) -> int:
        return self._steps

    def close(self) -> None:
        """Ends what asks ahead. May be called twice."""
        self.asker.close()

    def step(self, index: int, rank: int = 0, ranks: int = 1) -> list[RolloutBatch]:
        """The step's share of the groups of its round."""
        self._keep_outcomes()
        self.done = index + 1
        number, place = divmod(index, self.settings.sync_steps)
        self._loss.temperature = self.asker.sampling(number).temperature
        if self._held[0] != number:
            self._held = (number, *self._world.conduct(lambda: self.round(number)))
        _, groups, numbers = self._held
        steps = self.asker.steps_of(number)
        of_step = [
            (row_id, [replace(each, step=index) for each in group])
            for row_id, group in groups[place * len(groups) // steps : (place + 1) * len(groups) // steps]
        ]
        self._pending = [each.number for _, group in of_step for each in group]
        return self._batches(of_step, dict.fromkeys(numbers, (0.0, 0.0)) if place else numbers, rank, ranks)

    def heaviest(self, rank: int = 0, ranks: int = 1) -> RolloutBatch:
        """A step's groups of the longest prompt with the longest answers, or as many answers of one as a micro-batch holds."""
        prompt, length = max(self.prompts, key=lambda prompt: len(prompt.ids)).tokens, self._longest
        answer = Sampled(np.zeros(length, np.int32), np.zeros(length, np.float32), 0, ended=True)
        longest = LearntRollout(Rollout.of(prompt, answer, Grade(0.0)), 0, 1.0, 1.0, 1.0)

        def documents(groups: int, answers: int) -> list[Document]:
            copies = [[replace(longest, number=group * answers + n) for n in range(answers)] for group in range(groups)]
            return [each for group in copies for each in group_documents("longest", group, self._shares, 2**31)]

        heaviest = documents(self.settings.prompts_per_step, self.settings.answers)
        if sum(map(len, heaviest)) > self._micro_batch_tokens:
            heaviest = documents(1, max(1, self._micro_batch_tokens // (length + 1)))
        return rollout_batches(heaviest, self._micro_batch_tokens, {})[0]

    def state(self) -> dict[str, Any]:
        """What the watch and the canary saw; the rest is in the log."""
        self._keep_outcomes()
        return self._world.conduct(lambda: {**self._watch.state(), "noise": self._canary.compared.noise})

    def resume(self, state: dict[str, Any]) -> None:
        self._watch.resume(state)
        self._canary.compared.noise = state["noise"]
        self.done = self._steps  # of a run that is over; one that goes on asks for a step

    def round(self, number: int) -> tuple[list[LearntGroup], Numbers]:
        """(the groups that teach, numbers of the round)."""
        groups, gap = self.asker.answered(number)
        if number == 0:
            refuse_no_grades(groups)
        wanted = self.asker.steps_of(number) * self.settings.prompts_per_step
        learnt = learnt_groups(groups, self.prompts, self.settings, wanted)
        self._watch.see([group.rollouts for group in groups], len(learnt))
        numbers = round_numbers(groups, self.settings.passing_grade, gap)
        return learnt, {**numbers, **learnt_ages(learnt, number)} if self.settings.max_staleness else numbers

    def _batches(self, groups: Sequence[LearntGroup], numbers: Numbers, rank: int, ranks: int) -> list[RolloutBatch]:
        """Those of data rank `rank` of `ranks`, of which each has as many."""
        learnt, most = [each for _, members in groups for each in members], self._micro_batch_tokens
        nll = nll_weight(learnt, self.settings.nll)
        if ranks > 1 and learnt:  # no process has the whole step, not even one of a single group
            answers = sum(len(each.rollout.tokens) + 1 for each in learnt)
            most = min(most, max(len(each.rollout.prompt) for each in learnt) + math.ceil(answers / ranks))
        documents = [
            document for row_id, members in groups for document in group_documents(row_id, members, self._shares, most, nll)
        ]
        if not documents:
            shortest = min(self.prompts, key=lambda prompt: len(prompt.ids))
            documents = [nothing_learnt(shortest.row_id, shortest.tokens)]
        if ranks > 1:
            lengths = [len(document) for document in documents]
            most = min(self._micro_batch_tokens, max(max(lengths), math.ceil(sum(lengths) / ranks)))
        batches = rollout_batches(documents, most, numbers)
        mine, silent = batches[rank::ranks], replace(batches[0].silenced(), numbers=dict.fromkeys(numbers, (0.0, 0.0)))
        batches = mine + [silent] * (math.ceil(len(batches) / ranks) - len(mine))
        if self._start is None:
            return batches
        with self._start.in_place():
            return [replace(batch, reference=self._reader.log_probs(batch)) for batch in batches]

    def _keep_outcomes(self) -> None:
        """Writes what became of the last step's rollouts."""
        gaps = dict(each for of_process in self._world.gather(self._loss.taken_gaps()) for each in of_process.items())
        if self._pending and self._world.leads:
            self.log.add_outcomes({number: RolloutOutcome(True, gaps.get(number)) for number in self._pending})
        self._pending = []


def refuse_no_grades(groups: Sequence[Group]) -> None:
    """Raises ModelError where nothing has a grade from the start."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    problems = Counter(rollout.grade.problem for rollout in rollouts if rollout.grade.problem)
    if all(rollout.grade.value is None for rollout in rollouts):
        reason = f"; {problems.most_common(1)[0][0]}" if problems else ": its rows bring nothing that the grader reads"
        remedy = "mend it, or choose other prompts" if problems else "choose another grader or dataset"
        raise ModelError(f"none of the {len(rollouts)} first answers has a grade{reason}; {remedy}")
