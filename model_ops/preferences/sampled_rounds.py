"""Rounds of a model's own answers: it answers the next prompts, a grader grades, best and worst answer are a pair.

The best answer is one that ends, because a cut one would teach to go on without end; the worst may be a cut one. A round that
gives fewer pairs than steps asks further prompts, MOST_CHUNKS times in all."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model_ops.answers import (
    SAMPLED_ANSWER_ROWS,
    AnswerReader,
    Engine,
    Rollout,
    RolloutChunk,
    RolloutLog,
    RolloutMaker,
    SampledPrompt,
    Tokens,
)
from model_ops.files import bare
from model_ops.graders import GradedAnswer
from model_ops.jobs import ModelError, Progress
from model_ops.preferences.sampled_pair_settings import SampledPairSettings

MOST_CHUNKS = 4
TIES, NO_END, UNGRADED = "ties", "prompts_without_an_end", "ungraded_prompts"
Sides = list[int] | str
"""Places of a prompt's chosen and rejected answer, or why it has none."""


class SampledPair(NamedTuple):
    """A better and a worse answer to a prompt."""

    prompt: SampledPrompt
    chosen: Tokens
    rejected: Tokens


class SampledRounds:
    """left_out: counts of prompts that are not asked. maker: grades what the engine samples with the present weights."""

    def __init__(
        self,
        prompts: Sequence[SampledPrompt],
        left_out: Mapping[str, int],
        engine: Engine,
        maker: RolloutMaker,
        reader: AnswerReader,
        settings: SampledPairSettings,
        seed: int,
        log: RolloutLog,
        progress: Progress,
    ):
        self.prompts, self._left_out, self._engine, self._maker, self._reader = prompts, left_out, engine, maker, reader
        self.settings, self._seed, self.log, self._progress = settings, seed, log, progress
        self._sides: dict[int, list[Sides]] = {}
        """By the first rollout of a chunk."""

    def pairs(self, round: int) -> list[SampledPair]:
        """The pairs of a round: from the log, else sampled now. Raises ModelError if no prompt gives one."""
        pairs, outcomes, values = list[SampledPair](), Counter[str](), list[float]()
        begin = sum(chunk.round < round for chunk in self.log.chunks)
        for number in range(begin, begin + MOST_CHUNKS):
            chunk = self._chunk(number, round)
            values += [each.grade.value for group in chunk.numbers for each in group if each.grade.value is not None]
            for place, group, side in zip(chunk.prompts, chunk.groups(), self._sides_of(chunk), strict=True):
                if isinstance(side, str):
                    outcomes[side] += 1
                else:
                    pairs.append(SampledPair(self.prompts[place], *(group[each].tokens for each in side)))
            if len(pairs) >= self.settings.sync_steps:
                break
        if pairs:
            return pairs
        raise ModelError(self._why_no_pair(round, outcomes, values))

    def _why_no_pair(self, round: int, outcomes: Counter[str], values: Sequence[float]) -> str:
        reasons = ", ".join(f"{name} {count}" for name, count in outcomes.items())
        if values:
            reasons += f", mean grade {fmean(values):.3g}"
        remedy = (
            "choose prompts that the model answers well sometimes, or raise on_policy.answers, temperature or max_new_tokens"
        )
        if outcomes.keys() == {UNGRADED}:
            remedy = "the grader gave hardly any answer a grade, so choose another grader, or prompts that bring what it reads"
        if round:
            remedy += f"; `steps: {round * self.settings.sync_steps}` ends before that"
        return f"none of {outcomes.total()} prompts gave a better and a worse answer ({reasons}): {remedy}"

    def counts(self) -> dict[str, float]:
        """Numbers of all rounds, and mean grade and length of the answers of the first and the last one."""
        table, sides = self.table(), [side for chunk in self.log.chunks for side in self._sides_of(chunk)]
        counts: dict[str, float] = {
            **self._left_out,
            "sampled_prompts": len(sides),
            "sampled_answers": len(table),
            "sampled_tokens": pc.sum(table["tokens"]).as_py(),
            "cut_answers": pc.sum(pc.invert(table["ended"])).as_py(),
            "failed_grades": pc.sum(pc.not_equal(table["problem"], "")).as_py(),
            "pairs": sum(not isinstance(side, str) for side in sides),
            **{name: sides.count(name) for name in (TIES, NO_END, UNGRADED)},
        }
        for when, step in zip(("first", "last"), pc.min_max(table["step"]).as_py().values(), strict=True):
            answers = table.filter(pc.equal(table["step"], step))
            counts |= {f"{when}_grade": pc.mean(answers["grade"]).as_py(), f"{when}_tokens": pc.mean(answers["tokens"]).as_py()}
        return counts

    def table(self) -> pa.Table:
        """Every graded answer. step: steps after which the model gave it. side: chosen, rejected or ''."""
        rows = [row for chunk in self.log.chunks for row in self._rows(chunk)]
        return pa.Table.from_pylist(rows, schema=bare(SAMPLED_ANSWER_ROWS))

    def _rows(self, chunk: RolloutChunk) -> Iterator[dict[str, Any]]:
        sides = iter(self._sides_of(chunk))
        places: dict[int, str] = {}
        for row in self.log.rows(chunk, self.prompts, self.settings.sync_steps):
            if row["answer"] == 0:
                side = next(sides)
                places = {} if isinstance(side, str) else dict(zip(side, ("chosen", "rejected"), strict=True))
            yield {**row, "side": places.get(row["answer"], "")}

    def _sides_of(self, chunk: RolloutChunk) -> list[Sides]:
        if chunk.first not in self._sides:
            self._sides[chunk.first] = [
                self._side(self.prompts[place], group) for place, group in zip(chunk.prompts, chunk.groups(), strict=True)
            ]
        return self._sides[chunk.first]

    def _side(self, prompt: SampledPrompt, group: Sequence[Rollout]) -> Sides:
        read = [self._reader.read(prompt, rollout.tokens, rollout.ended) for rollout in group]
        answers, ended = [answer for answer, _ in read], [whole for _, whole in read]
        return best_and_worst([rollout.grade.value for rollout in group], answers, ended, self.settings.least_difference)

    def _chunk(self, number: int, round: int) -> RolloutChunk:
        if number == len(self.log.chunks):
            self._progress.report("answers of the model", round, round + 1, "rounds")
            places = self._places(number)
            names = [f"{number}:{place}" for place in range(len(places))]
            self._engine.sync(round * self.settings.sync_steps)
            groups = self._maker.rollouts([self.prompts[place] for place in places], names, self._engine, self._seed)
            self.log.add_chunk(round, places, names, groups)
        return self.log.chunks[number]

    def _places(self, chunk: int) -> list[int]:
        """Prompts of a chunk: the next ones in an endless sequence that is shuffled in every pass."""
        count = self.settings.prompts_per_step * self.settings.sync_steps
        passes = [divmod(at, len(self.prompts)) for at in range(chunk * count, (chunk + 1) * count)]
        orders = {
            number: np.random.default_rng((self._seed, number, 5)).permutation(len(self.prompts))
            for number in {n for n, _ in passes}
        }
        return [int(orders[number][place]) for number, place in passes]


def best_and_worst(
    grades: Sequence[float | None], answers: Sequence[GradedAnswer], ended: Sequence[bool], least_difference: float
) -> Sides:
    """Places of the best answer that ended and of the worst one, or why there is no pair: TIES, NO_END, UNGRADED. The first of
    several equal ones, which is a fair draw, because answers are alike before they are sampled."""
    values = {place: grade for place, grade in enumerate(grades) if grade is not None}
    if len(values) < 2:
        return UNGRADED
    whole = [place for place in values if ended[place]]
    if not whole:
        return NO_END
    best, worst = max(whole, key=values.__getitem__), min(values, key=values.__getitem__)
    same = answers[best].message == answers[worst].message
    return TIES if same or values[best] - values[worst] <= least_difference else [best, worst]
