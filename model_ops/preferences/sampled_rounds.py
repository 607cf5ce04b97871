"""Rounds of a model's own answers: it answers the next prompts, a grader says how good each answer is, best and worst are a
pair.

    rounds = SampledRounds(prompts, counts, sampler, grader, tokenizer, ends, settings, training, seed=0, log=log,
        progress=progress)
    rounds.pairs(3)                # SampledPair for each prompt of round 3 whose answers differ in grade
    rounds.counts()                # of all rounds so far
    rounds.table()                 # a row for each answer

The best answer is one that ends, because a cut one would teach to go on without end; the worst may be a cut one. Prompts whose
answers are all as good (ties), of which none ends, or of which fewer than two have a grade give no pair and are counted. A
round that gives fewer pairs than steps asks further prompts, MOST_CHUNKS times in all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from transformers import PreTrainedTokenizerBase

from model_ops.files import bare
from model_ops.graders import AskedGroup, Grade, GradedAnswer, Grader
from model_ops.jobs import ModelError, Progress
from model_ops.preferences.sampled_answer_rows import SAMPLED_ANSWER_ROWS
from model_ops.preferences.sampled_answers import AnswerLog, SampledChunk, Sides
from model_ops.preferences.sampled_pair_settings import SampledPairSettings
from model_ops.rollouts import AnswerReader, SampledPrompt, Sampler, Tokens

MOST_CHUNKS = 4
GRADED_AT_ONCE = 8
"""Prompts whose answers are graded before the grades are kept: what a kill may lose."""
TIES, NO_END, UNGRADED = "ties", "prompts_without_an_end", "ungraded_prompts"


class SampledPair(NamedTuple):
    """A better and a worse answer to a prompt."""

    prompt: SampledPrompt
    chosen: Tokens
    rejected: Tokens


class SampledRounds:
    """left_out: counts of prompts that are not asked. sampler: answers with the model's present weights. ends: tokens that end
    an answer. training: AskedGroup.training after so many steps."""

    def __init__(
        self,
        prompts: Sequence[SampledPrompt],
        left_out: Mapping[str, int],
        sampler: Sampler,
        grader: Grader,
        tokenizer: PreTrainedTokenizerBase,
        ends: Collection[int],
        settings: SampledPairSettings,
        training: Callable[[int], Mapping[str, float]],
        seed: int,
        log: AnswerLog,
        progress: Progress,
    ):
        self.prompts, self._left_out = prompts, left_out
        self._sampler, self._grader = sampler, grader
        self._ends, self.settings, self._seed, self.log, self._progress = frozenset(ends), settings, seed, log, progress
        self._reader, self._training = AnswerReader(tokenizer), training

    def pairs(self, round: int) -> list[SampledPair]:
        """The pairs of a round: from the log, else sampled now. Raises ModelError if no prompt gives one."""
        begin, found, outcomes, values = self.log.before(round), list[SampledPair](), Counter[str](), list[float]()
        for number in range(begin, begin + MOST_CHUNKS):
            chunk = self._chunk(number, round)
            values += [grade.value for grades in chunk.grades for grade in grades if grade.value is not None]
            for place, answers, side in zip(chunk.prompts, chunk.answers, chunk.sides, strict=True):
                if isinstance(side, str):
                    outcomes[side] += 1
                else:
                    found.append(SampledPair(self.prompts[place], *(answers[each] for each in side)))
            if len(found) >= self.settings.sync_steps:
                break
        if found:
            return found
        said = ", ".join(f"{name} {count}" for name, count in outcomes.items())
        if values:
            said += f", mean grade {fmean(values):.3g}"
        remedy = (
            "choose prompts that the model answers well sometimes, or raise on_policy.answers, temperature or max_new_tokens"
        )
        if outcomes.keys() == {UNGRADED}:
            remedy = "the grader gave hardly any answer a grade, so choose another grader, or prompts that bring what it reads"
        if round:
            remedy += f"; `steps: {round * self.settings.sync_steps}` ends before that"
        raise ModelError(f"none of {outcomes.total()} prompts gave a better and a worse answer ({said}): {remedy}")

    def counts(self) -> dict[str, float]:
        """Numbers of all rounds, and mean grade and length of the answers of the first and the last one."""
        table, sides = self.table(), [side for chunk in self.log.chunks for side in chunk.sides]
        found: dict[str, float] = {
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
            found |= {f"{when}_grade": pc.mean(answers["grade"]).as_py(), f"{when}_tokens": pc.mean(answers["tokens"]).as_py()}
        return found

    def table(self) -> pa.Table:
        """Every graded answer. step: steps after which the model gave it. side: chosen, rejected or ''."""
        return pa.Table.from_pylist(
            [row for chunk in self.log.chunks for row in self._rows(chunk)], schema=bare(SAMPLED_ANSWER_ROWS)
        )

    def _rows(self, chunk: SampledChunk) -> Iterator[dict[str, Any]]:
        for place, answers, grades, side in zip(chunk.prompts, chunk.answers, chunk.grades, chunk.sides, strict=False):
            sides = {} if isinstance(side, str) else dict(zip(side, ("chosen", "rejected"), strict=True))
            for number, (tokens, grade) in enumerate(zip(answers, grades, strict=True)):
                yield {
                    "row_id": self.prompts[place].row_id,
                    "interaction_ids": self.prompts[place].columns.get("interaction_ids") or [],
                    "step": chunk.round * self.settings.sync_steps,
                    "answer": number,
                    "grade": grade.value,
                    "parts": list(grade.parts.items()),
                    "problem": grade.problem,
                    "side": sides.get(number, ""),
                    "tokens": len(tokens),
                    "ended": int(tokens[-1]) in self._ends,
                }

    def _chunk(self, number: int, round: int) -> SampledChunk:
        """A chunk with its answers and grades, of which the log may have some already."""
        each = self.settings.answers
        if number == len(self.log.chunks):
            self._progress.report("answers of the model", round, round + 1, "rounds")
            places = self._places(number)
            names = [f"{number}:{place}:{answer}" for place in range(len(places)) for answer in range(each)]
            said = self._sampler([self.prompts[place].ids for place in places for _ in range(each)], names, self._seed)
            self.log.add_answers(round, places, [said[begin : begin + each] for begin in range(0, len(said), each)])
        chunk = self.log.chunks[number]
        while (begin := len(chunk.grades)) < len(chunk.prompts):
            self._progress.stop_if_requested()
            self._progress.report("grades", begin, len(chunk.prompts), "prompts")
            part = slice(begin, begin + GRADED_AT_ONCE)
            asked = [
                (prompt := self.prompts[place], [self._reader.read(prompt, ids, int(ids[-1]) in self._ends) for ids in answers])
                for place, answers in zip(chunk.prompts[part], chunk.answers[part], strict=True)
            ]
            training = self._training(round * self.settings.sync_steps)
            grades = self._grader.grade(
                [
                    AskedGroup(
                        prompt.row_id, prompt.messages, prompt.tools, prompt.columns, [each for each, _ in said], training
                    )
                    for prompt, said in asked
                ]
            )
            least = self.settings.least_difference
            sides = [
                best_and_worst(of, [answer for answer, _ in said], [ended for _, ended in said], least)
                for of, (_, said) in zip(grades, asked, strict=True)
            ]
            self.log.add_grades(number, grades, sides)
        return chunk

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
    grades: Sequence[Grade], answers: Sequence[GradedAnswer], ended: Sequence[bool], least_difference: float
) -> Sides:
    """Places of the best answer that ended and of the worst one, or why there is no pair: TIES, NO_END, UNGRADED. The first of
    several equal ones, which is a fair draw, because answers are alike before they are sampled."""
    graded = [place for place, grade in enumerate(grades) if grade.value is not None]
    if len(graded) < 2:
        return UNGRADED
    whole = [place for place in graded if ended[place]]
    if not whole:
        return NO_END

    def value(place: int) -> float:
        return grades[place].value

    best, worst = max(whole, key=value), min(graded, key=value)
    same = answers[best].message == answers[worst].message
    return TIES if same or value(best) - value(worst) <= least_difference else [best, worst]
