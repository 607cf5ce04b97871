"""Steps that learn from rollouts of the model in training: a StatefulSource of RolloutBatch.

    plan = RolloutPlan(prompts, maker, engine, log, model, loss, settings, world, shares=True, progress=progress)
    train(model, plan, loss, ...)
    for table in plan.tables(tokenizer): ...    # a row for each rollout
    plan.counts()                      # of the whole run

Step i learns from its share of round i // sync_steps. Before a round the engine takes the present weights; the round's prompts
are drawn by their pass rates (prompt_pool.py) and asked a chunk at a time, each kept as it comes. A group whose
grades are all equal teaches nothing and is left out; so is a rollout without a grade, and with `overlong: mask` a cut one.

After each sync the model itself reads the first answers of the engine, which must have its weights and temperature (canary.py).

The state is the log: a run that continues finds the rounds there. Checkpoints hold what the watch (rollout_watch.py) and the
canary saw.

On a mesh the first process has the log and plans each round; the others get what is learnt of it, and each process learns its
share of the micro-batches.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from model_ops.answers import (
    ROLLOUT_ROWS,
    Engine,
    Rollout,
    RolloutChunk,
    RolloutLog,
    RolloutMaker,
    RolloutOutcome,
    Sampled,
    SampledPrompt,
    last_of_attempts,
    sampled_text,
)
from model_ops.documents import MICRO_BATCH_TOKENS, Document
from model_ops.files import bare
from model_ops.graders import Grade
from model_ops.jobs import ModelError, Progress
from model_ops.losses import token_nll
from model_ops.machine import products_in
from model_ops.parallel import World
from model_ops.reinforcement.advantages import advantages_of, all_equal
from model_ops.reinforcement.canary import Canary, Reading, canary_rollouts, read
from model_ops.reinforcement.policy_loss import PolicyLoss
from model_ops.reinforcement.prompt_pool import PromptPool
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
from model_ops.reinforcement.rollout_watch import RolloutWatch
from model_ops.training import StartWeights

LearntGroup = tuple[str, list[LearntRollout]]
"""Id of a prompt's row, and its rollouts that are learnt."""


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt. first: number of the first one in the log."""

    prompt: int
    rollouts: list[Rollout]
    first: int
    grades: list[float | None]
    """With the penalty of long answers."""

    @property
    def teaches(self) -> bool:
        return not all_equal(self.grades)

    @property
    def attempts(self) -> list[Rollout]:
        """The last rollout of each attempt, which has several where the chat template rewrote what was said."""
        return last_of_attempts(self.rollouts)


class RolloutPlan:
    """shares: whether rollouts may continue one computed prompt (model_ops.documents). longest: most tokens after a prompt."""

    def __init__(
        self,
        prompts: Sequence[SampledPrompt],
        maker: RolloutMaker,
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
        self._maker, self._engine, self._model, self._loss = maker, engine, model, loss
        self._world, self._shares, self._longest, self._progress = world, shares, longest, progress
        world.parts["canary"] = self._reading
        self._steps, self.done = settings.steps_over(len(prompts), settings.prompts_per_step), 0
        """done: steps, the one that was asked for last included."""
        self._micro_batch_tokens = settings.micro_batch_tokens or max(MICRO_BATCH_TOKENS, settings.max_length)
        self._start = StartWeights(model) if settings.kl else None
        self._pool = PromptPool(len(prompts), settings.passing_grade, settings.seed)
        self._seen = 0  # chunks whose grades the pool knows
        self._held: tuple[int, list[LearntGroup], Numbers] = (-1, [], {})
        self._pending: list[int] = []
        self._lanes_at_once, self._sampled_per_second = 1, 0.0
        self._watch, self._compared = RolloutWatch(progress, settings.overlong == "mask"), Canary()

    def __len__(self) -> int:
        return self._steps

    def step(self, index: int, rank: int = 0, ranks: int = 1) -> list[RolloutBatch]:
        """The step's share of the groups of its round."""
        self._keep_outcomes()
        self.done = index + 1
        number, place = divmod(index, self.settings.sync_steps)
        self._loss.temperature = self._sampling(number).temperature
        if self._held[0] != number:
            self._held = (number, *self._world.conduct(lambda: self._round(number)))
        _, groups, numbers = self._held
        steps = self._steps_of(number)
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
        made = LearntRollout(Rollout.of(prompt, answer, Grade(0.0)), 0, 1.0, 1.0, 1.0)

        def documents(groups: int, answers: int) -> list[Document]:
            found = [[replace(made, number=group * answers + n) for n in range(answers)] for group in range(groups)]
            return [each for group in found for each in group_documents("longest", group, self._shares, 2**31)]

        heaviest = documents(self.settings.prompts_per_step, self.settings.answers)
        if sum(map(len, heaviest)) > self._micro_batch_tokens:
            heaviest = documents(1, max(1, self._micro_batch_tokens // (length + 1)))
        return rollout_batches(heaviest, self._micro_batch_tokens, {})[0]

    def state(self) -> dict[str, Any]:
        """What the watch and the canary saw; the rest is in the log."""
        self._keep_outcomes()
        return self._world.conduct(lambda: {**self._watch.state(), "noise": self._compared.noise})

    def resume(self, state: dict[str, Any]) -> None:
        self._watch.resume(state)
        self._compared.noise = state["noise"]
        self.done = self._steps  # of a run that is over; one that goes on asks for a step

    def tables(self, tokenizer: PreTrainedTokenizerBase) -> Iterator[pa.Table]:
        """Every rollout, a table for each chunk."""
        for chunk in self.log.chunks:
            texts = [sampled_text(tokenizer, each.tokens, each.ended) for group in chunk.groups() for each in group]
            known = self.log.rows(chunk, self.prompts, self.settings.sync_steps)
            rows = [{**row, "text": text} for row, text in zip(known, texts, strict=True)]
            yield pa.Table.from_pylist(rows, schema=bare(ROLLOUT_ROWS))

    def counts(self) -> dict[str, float]:
        """Numbers of the whole run, and mean grade and length of the first and the last round."""
        by_prompt = [
            (place, group) for chunk in self.log.chunks for place, group in zip(chunk.prompts, chunk.numbers, strict=True)
        ]
        groups, asked = [group for _, group in by_prompt], {place for place, _ in by_prompt}
        each = [rollout for group in groups for rollout in group]
        graded = [(place, kept.grade.value) for place, group in by_prompt for kept in group if kept.grade.value is not None]
        passed = {place for place, value in graded if value >= self.settings.passing_grade}
        found: dict[str, float] = {
            "asked_prompts": len(groups),
            "different_prompts": len(asked),
            "never_passed_prompts": len(asked - passed),
            "rollouts": len(each),
            "learnt_rollouts": sum(outcome.learnt for outcome in self.log.outcomes.values()),
            "sampled_tokens": sum(rollout.tokens for rollout in each),
            "cut_rollouts": sum(not rollout.ended for rollout in each),
            "failed_grades": sum(bool(rollout.grade.problem) for rollout in each),
            "ungraded_rollouts": sum(rollout.grade.value is None for rollout in each),
            "equal_groups": sum(all_equal([rollout.grade.value for rollout in group]) for group in groups),
        }
        rounds = {chunk.round for chunk in self.log.chunks}
        for when, round in (("first", min(rounds)), ("last", max(rounds))):
            groups = [group for chunk in self.log.of_round(round) for group in chunk.numbers]
            attempts = [attempt for group in groups for attempt in last_of_attempts(group)]
            grades = [attempt.grade.value for attempt in attempts if attempt.grade.value is not None]
            found[f"{when}_grade"] = float(np.mean(grades)) if grades else math.nan
            found[f"{when}_tokens"] = sum(rollout.tokens for group in groups for rollout in group) / len(attempts)
        return found

    def values(self) -> list[float]:
        """Every grade that was given."""
        each = (kept.grade.value for chunk in self.log.chunks for group in chunk.numbers for kept in group)
        return [value for value in each if value is not None]

    def last_grades(self) -> list[Grade]:
        """Grades of the last quarter of the chunks."""
        chunks = self.log.chunks[-max(1, len(self.log.chunks) // 4) :]
        return [kept.grade for chunk in chunks for group in chunk.numbers for kept in group]

    def _sampling(self, round: int) -> RftSettings:
        """The settings with the temperature and the longest answer of a round."""
        return self.settings.at(round * self.settings.sync_steps / max(1, self._steps - 1))

    def _steps_of(self, round: int) -> int:
        """Steps that learn from a round; the last one may have fewer."""
        return min(self.settings.sync_steps, self._steps - round * self.settings.sync_steps)

    def _round(self, number: int) -> tuple[list[LearntGroup], Numbers]:
        """(the groups that teach, numbers of the round)."""
        groups, gap = self._answered(number)
        self._refuse_no_grades(groups, number)
        learnt = self._learnt(groups)
        self._watch.see([group.rollouts for group in groups], len(learnt))
        return learnt, self._numbers(groups, gap)

    def _missing(self, number: int, groups: Sequence[Group], running: int = 0) -> int:
        """Prompts that are still to be asked for a round; more may follow. running: prompts that are being answered."""
        wanted = self.settings.prompts_per_step * self._steps_of(number)
        most, asked = wanted * (1 + self.settings.replacements), len(groups) + running
        useful = sum(group.teaches for group in groups) + running
        return max(0, wanted - asked if asked < wanted else min(wanted - useful, most - asked))

    @property
    def _at_once(self) -> int:
        """Prompts of a chunk."""
        return max(1, self.settings.batch_size // self._maker.answers)

    def _answered(self, number: int) -> tuple[list[Group], float | None]:
        """(the groups of a round, the canary's gap or None): from the log, else made now."""
        groups, gap = [group for chunk in self.log.of_round(number) for group in self._groups(chunk)], None
        while missing := self._missing(number, groups):
            self._progress.stop_if_requested()
            self._report(number, groups, missing)
            is_synced = gap is not None
            if not is_synced:
                self._engine.sync(number * self.settings.sync_steps)
            asked_groups, found = self._asked(number, min(missing, self._at_once), reads_canary=not is_synced)
            groups, gap = groups + asked_groups, gap if is_synced else found
        return groups, gap

    def _report(self, number: int, groups: Sequence[Group], missing: int) -> None:
        """Reports a step that waits for its round, with the grades of the round so far and the speed of the last chunk."""
        self._progress.report("rft", number * self.settings.sync_steps, self._steps, "steps")
        graded = {name: part / of for name, (part, of) in self._numbers(groups, None).items() if of}
        shown: dict[str, float] = {name: graded[name] for name in ("pass_rate", "reward") if name in graded}
        if self._sampled_per_second:
            shown["sampled_per_second"] = self._sampled_per_second
        self._progress.part("rollouts", len(groups), len(groups) + missing, "prompts", **shown)

    def _asked(self, number: int, count: int, reads_canary: bool) -> tuple[list[Group], float]:
        """(the groups of the round's next chunk, the canary's gap or NaN). The draw knows the grades of all chunks before. The
        canary comes before the log, so that a continued run finds no rollouts there that it refused."""
        place = len(self.log.chunks)
        chosen = self._drawn(place, count)
        self._engine.settings = self._sampling(number)
        made = self._made(self._maker, place, chosen)
        self._engine.settings = self.settings  # held-out answers are sampled alike at any step
        gap = self._canary(canary_rollouts(made), number) if reads_canary else math.nan
        self.log.add_chunk(number, chosen, chunk_names(place, chosen), made)
        return self._groups(self.log.chunks[-1]), gap

    def _drawn(self, place: int, count: int) -> list[int]:
        """The prompts of a chunk, by the grades so far."""
        for chunk in self.log.chunks[self._seen :]:
            for prompt, group in zip(chunk.prompts, chunk.numbers, strict=True):
                self._pool.see(prompt, [rollout.grade.value for rollout in last_of_attempts(group)])
        self._seen = len(self.log.chunks)
        return self._pool.draw(place, count)

    def _made(self, maker: RolloutMaker, place: int, chosen: Sequence[int]) -> list[list[Rollout]]:
        began_s = time.monotonic()
        asked = [self.prompts[prompt] for prompt in chosen]
        made = maker.rollouts(asked, chunk_names(place, chosen), self._engine, self.settings.seed)
        tokens = sum(int(each.sampled.sum()) for group in made for each in group)
        self._sampled_per_second = self._lanes_at_once * tokens / max(time.monotonic() - began_s, 1e-9)
        return made

    def _groups(self, chunk: RolloutChunk) -> list[Group]:
        found, first = [], chunk.first
        for prompt, rollouts in zip(chunk.prompts, chunk.groups(), strict=True):
            longest = self._sampling(chunk.round).max_new_tokens
            found.append(Group(prompt, rollouts, first, [self._grade(rollout, longest) for rollout in rollouts]))
            first += len(rollouts)
        return found

    def _grade(self, rollout: Rollout, longest: int) -> float | None:
        """The grade, less the penalty of long answers: 0 up to overlong_tokens before the limit, then rising to 1 at the limit
        (DAPO, arXiv 2503.14476, equation 13)."""
        if self.settings.overlong != "penalty" or rollout.grade.value is None:
            return rollout.grade.value
        over = self.settings.overlong_tokens or max(1, longest // 5)
        return rollout.grade.value - min(1.0, max(0.0, (int(rollout.sampled.sum()) - longest + over) / over))

    def _is_left_out(self, rollout: Rollout) -> bool:
        return not rollout.sampled.any() or (self.settings.overlong == "mask" and not rollout.ended)

    def _learnt(self, groups: Sequence[Group]) -> list[LearntGroup]:
        """The rollouts of each group that teaches, with their advantages."""
        taught = [group for group in groups if group.teaches]
        lengths = [[0 if self._is_left_out(each) else int(each.sampled.sum()) for each in group.rollouts] for group in taught]
        attempts = [[each.attempt for each in group.rollouts] for group in taught]
        advantages = advantages_of(self.settings.compared, [group.grades for group in taught], lengths, attempts)
        found = []
        for group, of_group, tokens in zip(taught, advantages, lengths, strict=True):
            members = [
                LearntRollout(
                    rollout,
                    group.first + place,
                    float(advantage),
                    *self._scale_and_share(length),
                    passed=rollout.grade.value >= self.settings.passing_grade,
                )
                for place, (rollout, advantage, length) in enumerate(zip(group.rollouts, of_group, tokens, strict=True))
                if length and math.isfinite(advantage)
            ]
            found += [(self.prompts[group.prompt].row_id, members)] if members else []
        return found

    def _scale_and_share(self, tokens: int) -> tuple[float, float]:
        """Of a token of a rollout of so many: in the sum of the loss, and in its denominator. The constant denominator is that
        of Dr.GRPO (arXiv 2503.20783), so a token counts the same in answers of any length."""
        if self.settings.mean_over == "token":
            return 1.0, 1.0
        return (
            (1 / tokens, 1 / tokens) if self.settings.mean_over == "rollout" else (1.0, self.settings.max_new_tokens / tokens)
        )

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
            return [replace(batch, reference=self._log_probs(batch)) for batch in batches]

    @torch.no_grad()
    def _log_probs(self, batch: RolloutBatch, factor: float = 1.0) -> torch.Tensor:
        """The model's log-probability of each label, at a factor of the temperature; 0 elsewhere."""
        there, temperature = batch.to(self._world.device), factor * self._loss.temperature
        with products_in(self.settings.precision, self._world.device):
            nll, kept = self._world.evaluate(self._model, lambda: token_nll(self._model, there, temperature))
        return torch.zeros_like(there.sampler).index_copy(0, kept, -nll).cpu()

    def _canary(self, rollouts: Sequence[Rollout], number: int) -> float:
        """Largest difference of log-probabilities of the engine and the model, by token. Raises ModelError as Canary.check."""
        given = [LearntRollout(each, place, 0.0, 1.0, 1.0) for place, each in enumerate(rollouts)]
        documents = [document for each in given for document in group_documents("canary", [each], True, 2**31)]
        if not documents:
            return math.nan
        reading = self._world.ask("canary", rollout_batches(documents, 2**31, {})[0])
        return self._compared.check(reading, self._engine.exact and self.settings.precision == "float32", number)

    def _reading(self, batch: RolloutBatch) -> Reading:
        """Of the canary, by every process."""
        self._model.eval()
        found = read(partial(self._log_probs, batch), batch)
        self._model.train()
        return found

    def _refuse_no_grades(self, groups: Sequence[Group], number: int) -> None:
        """Raises ModelError where nothing has a grade from the start."""
        each = [rollout for group in groups for rollout in group.rollouts]
        problems = Counter(rollout.grade.problem for rollout in each if rollout.grade.problem)
        if number == 0 and all(rollout.grade.value is None for rollout in each):
            said = f"; {problems.most_common(1)[0][0]}" if problems else ": its rows bring nothing that the grader reads"
            remedy = "mend it, or choose other prompts" if problems else "choose another grader or dataset"
            raise ModelError(f"none of the {len(each)} first answers has a grade{said}; {remedy}")

    def _numbers(self, groups: Sequence[Group], gap: float | None) -> Numbers:
        """What metrics.jsonl says of a round."""
        each = [rollout for group in groups for rollout in group.attempts]
        grades = [rollout.grade.value for rollout in each if rollout.grade.value is not None]
        parts: dict[str, list[float]] = {}
        for rollout in each:
            for name, value in rollout.grade.parts.items():
                parts.setdefault(name, []).append(value)
        passed = [
            [value >= self.settings.passing_grade for rollout in group.attempts if (value := rollout.grade.value) is not None]
            for group in groups
        ]
        said = [of_group for of_group in passed if of_group]
        count = float(len(each))
        found: dict[str, tuple[float, float]] = {
            "reward": (float(np.sum(grades)), float(len(grades))),
            **{f"reward_{name}": (float(np.sum(values)), float(len(values))) for name, values in sorted(parts.items())},
            "pass_rate": (float(sum(map(sum, passed))), float(len(grades))),
            "passed_once": (float(sum(map(any, said))), float(len(said))),
            "equal_groups": (float(sum(not group.teaches for group in groups)), float(len(groups))),
            "ungraded": (count - len(grades), count),
            "cut": (float(sum(not rollout.ended for rollout in each)), count),
            "answer_tokens": (float(sum(each.sampled.sum() for group in groups for each in group.rollouts)), count),
            "asked_prompts": (float(len(groups)), 1.0),
        }
        return found if gap is None or math.isnan(gap) else {**found, "canary_gap": (gap, 1.0)}

    def _keep_outcomes(self) -> None:
        """Writes what became of the last step's rollouts."""
        gaps = dict(each for of_process in self._world.gather(self._loss.taken_gaps()) for each in of_process.items())
        if self._pending and self._world.leads:
            self.log.add_outcomes({number: RolloutOutcome(True, gaps.get(number)) for number in self._pending})
        self._pending = []


def chunk_names(place: int, prompts: Sequence[int]) -> list[str]:
    """Names of the prompts of a chunk, which decide random numbers and name attempts in the log."""
    return [f"{place}:{prompt}" for prompt in prompts]
