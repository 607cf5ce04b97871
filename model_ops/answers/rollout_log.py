"""Rollouts kept as they are paid for, so that a killed training continues with the same ones.

    log = RolloutLog(work / "rollouts.jsonl")
    log.add_attempts({"0:3:0": [Rollout], "0:3:1": [Rollout]})                       # as they end; or all of a chunk at once:
    log.add_chunk(round=0, prompts=[3, 1], names=["0:3", "0:1"], groups=[[Rollout, ...], [Rollout, ...]])
    log.chunks[0].groups()                                                          # the rollouts, read from the file
    log.add_outcomes({17: RolloutOutcome(learnt=True, gap=2e-5)})

An attempt has the key "NAME:NUMBER": its prompt's name in the call, and its number at that prompt. Memory holds a few numbers
of each rollout; tokens stay in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from model_ops.answers.answer_log import AnswerLog, Record, pack_array, unpack_array
from model_ops.answers.rollout import Engine, Rollout, Sampled, SampledPrompt, Tokens, last_of_attempts
from model_ops.graders import AskedGroup, Grade, GradedAnswer, Grader
from model_ops.jobs import ModelError, Progress
from model_ops.rendering import TurnEncoder
from model_ops.tasks import UnusableAnswer, message_of

KINDS = {"prompt": np.int32, "tokens": np.int32, "sampled": bool, "log_probs": np.float32, "versions": np.int32}
"""Arrays of a rollout, as they are written."""


class RolloutOutcome(NamedTuple):
    """What became of a rollout."""

    learnt: bool
    gap: float | None
    """Mean |log-probability by the model less that of the sampler| of its tokens, in the step that learnt it."""


class RolloutNumbers(NamedTuple):
    """What memory holds of a rollout."""

    version: int
    """Of its first sampled token; -1 without one."""
    grade: Grade
    tokens: int
    """Sampled ones."""
    ended: bool
    attempt: int


@dataclass
class RolloutChunk:
    """The groups of prompts that were asked together."""

    round: int
    prompts: list[int]
    """Places of the prompts among all."""
    names: list[str]
    """Of the prompts in the call that answered them."""
    attempts: list[int]
    """How many each prompt has."""
    first: int
    """Number of its first rollout among all of the log."""
    numbers: list[list[RolloutNumbers]]
    """Of its rollouts, by prompt."""
    log: RolloutLog

    def groups(self) -> list[list[Rollout]]:
        """The rollouts, by prompt. Raises ModelError as `RolloutLog.attempts`."""
        return [self.log.attempts(name, count) for name, count in zip(self.names, self.attempts, strict=True)]


class RolloutLog(AnswerLog):
    """The file of one training, to which several threads may add. Adding raises ModelError where the disk is full."""

    def __init__(self, path: Path):
        self.chunks, self.outcomes, self._rollouts = list[RolloutChunk](), dict[int, RolloutOutcome](), 0
        super().__init__(path, self._numbers_of)

    def of_round(self, round: int) -> list[RolloutChunk]:
        return [chunk for chunk in self.chunks if chunk.round == round]

    def attempt(self, key: str) -> list[Rollout] | None:
        """The rollouts of an attempt; None for one that has not ended."""
        record = self.find(key)
        return None if record is None else [_read(written) for written in record["rollouts"]]

    def attempts(self, name: str, count: int) -> list[Rollout]:
        """The rollouts of all attempts at a prompt. Raises ModelError where one is missing."""
        rollouts: list[Rollout] = []
        for number in range(count):
            attempt = self.attempt(f"{name}:{number}")
            if attempt is None:
                raise ModelError(f"{self.path} lacks attempt {number} at prompt {name}: remove the file, and train again")
            rollouts += attempt
        return rollouts

    def add_attempts(self, attempts: Mapping[str, Iterable[Rollout]]) -> None:
        """Keeps attempts by their keys."""
        self.add_all(_attempt_records(attempts))

    def add_chunk(self, round: int, prompts: list[int], names: list[str], groups: Sequence[Sequence[Rollout]]) -> None:
        """Keeps a chunk with its attempts."""
        attempts = {
            f"{name}:{number}": list(rollouts)
            for name, group in zip(names, groups, strict=True)
            for number, rollouts in groupby(group, key=lambda rollout: rollout.attempt)
        }
        counts = [len({rollout.attempt for rollout in group}) for group in groups]
        with self._lock:
            chunk = {"key": f"chunk {len(self.chunks)}", "round": round, "prompts": prompts, "names": names, "attempts": counts}
            self.add_all([*_attempt_records(attempts), chunk])

    def add_outcomes(self, outcomes: Mapping[int, RolloutOutcome]) -> None:
        """Keeps what became of rollouts, by their numbers; of one that is known already, the newest stays."""
        with self._lock:
            written = {str(number): list(outcome) for number, outcome in outcomes.items()}
            self.add({"key": f"outcomes {len(self.notes)}", "outcomes": written})

    def rows(self, chunk: RolloutChunk, prompts: Sequence[SampledPrompt], sync_steps: int) -> Iterator[dict[str, Any]]:
        """Of each rollout of a chunk, what answer_rows.py describes; without text. prompts: all. sync_steps: of a round."""
        number = chunk.first
        for place, group in zip(chunk.prompts, chunk.numbers, strict=True):
            last = {id(rollout) for rollout in last_of_attempts(group)}
            for rollout in group:
                outcome = self.outcomes.get(number, RolloutOutcome(False, None))
                number += 1
                yield {
                    "row_id": prompts[place].row_id,
                    "interaction_ids": prompts[place].columns.get("interaction_ids") or [],
                    "step": chunk.round * sync_steps,
                    "answer": rollout.attempt,
                    "last": id(rollout) in last,
                    "version": rollout.version,
                    "grade": rollout.grade.value,
                    "parts": list(rollout.grade.parts.items()),
                    "problem": rollout.grade.problem,
                    "tokens": rollout.tokens,
                    "ended": rollout.ended,
                    **outcome._asdict(),
                }

    def _numbers_of(self, record: Record) -> list[RolloutNumbers]:
        """The note of an attempt. Takes a chunk or outcomes into what memory holds of the log."""
        if "outcomes" in record:
            self.outcomes |= {int(number): RolloutOutcome(*outcome) for number, outcome in record["outcomes"].items()}
        if "round" in record:
            of = {name: record[name] for name in ("round", "prompts", "names", "attempts")}
            numbers = [
                [each for number in range(count) for each in self.notes[f"{name}:{number}"]]
                for name, count in zip(record["names"], record["attempts"], strict=True)
            ]
            self.chunks.append(RolloutChunk(**of, first=self._rollouts, numbers=numbers, log=self))
            self._rollouts += sum(map(len, numbers))
        return [_numbers(_read(written)) for written in record.get("rollouts", ())]


def _numbers(rollout: Rollout) -> RolloutNumbers:
    sampled = rollout.versions[rollout.sampled]
    version = int(sampled[0]) if len(sampled) else -1
    return RolloutNumbers(version, rollout.grade, len(sampled), rollout.ended, rollout.attempt)


def _attempt_records(attempts: Mapping[str, Iterable[Rollout]]) -> list[Record]:
    return [{"key": key, "rollouts": [_written(rollout) for rollout in rollouts]} for key, rollouts in attempts.items()]


def _written(rollout: Rollout) -> dict[str, Any]:
    arrays = {name: pack_array(getattr(rollout, name).astype(kind)) for name, kind in KINDS.items()}
    return {**arrays, "ended": rollout.ended, "grade": asdict(rollout.grade), "attempt": rollout.attempt}


def _read(written: dict[str, Any]) -> Rollout:
    arrays = {name: unpack_array(written[name], kind) for name, kind in KINDS.items()}
    return Rollout(**{**written, **arrays, "grade": Grade(**written["grade"])})


GRADED_AT_ONCE = 8
"""Prompts whose answers are graded before the grades are kept: what a kill may lose."""


class AnswerReader:
    """Reads sampled tokens as the answer that a grader sees."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer, self._specials = tokenizer, TurnEncoder(tokenizer).specials

    def read(self, prompt: SampledPrompt, tokens: Tokens, ended: bool) -> tuple[GradedAnswer, bool]:
        """(the answer, whether it is one that a server would give: it ends, and its message can be read)."""
        answer, usable = self.read_text(prompt, sampled_text(self._tokenizer, tokens, ended), len(tokens), ended)
        return replace(answer, ids=tokens.tolist()), usable

    def read_text(self, prompt: SampledPrompt, text: str, tokens: int, ended: bool) -> tuple[GradedAnswer, bool]:
        """As `read`, of an answer whose text was kept. tokens: how many it had."""
        try:
            message = message_of(text, prompt.text, prompt.tools, self._specials)
        except UnusableAnswer:
            message, ended = {"role": "assistant", "content": text}, False
        return GradedAnswer(text, message, tokens), ended


def sampled_text(tokenizer: PreTrainedTokenizerBase, tokens: Tokens, ended: bool) -> str:
    """Sampled tokens as text, special ones included, without the end token of an answer that ended."""
    ids = tokens[:-1] if ended else tokens
    return tokenizer.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False)


class GradedAnswers:
    """As RolloutMaker. grader: opened. answers: to each prompt. training: AskedGroup.training after so many steps. log: keeps
    grades as they come, GRADED_AT_ONCE prompts at a time; a killed run samples the call again, and grades the rest of it."""

    def __init__(
        self,
        grader: Grader,
        tokenizer: PreTrainedTokenizerBase,
        answers: int,
        training: Callable[[int], Mapping[str, float]],
        progress: Progress,
        log: RolloutLog | None = None,
    ):
        self.grader, self.answers, self._reader, self._training = grader, answers, AnswerReader(tokenizer), training
        self._progress, self._log = progress, log

    def rollouts(
        self, prompts: Sequence[SampledPrompt], names: Sequence[str], engine: Engine, seed: int
    ) -> list[list[Rollout]]:
        """As RolloutMaker.rollouts."""
        keys = [f"{name}:{answer}" for name in names for answer in range(self.answers)]
        each_prompt = [prompt.tokens for prompt in prompts for _ in range(self.answers)]
        answers = iter(engine.sample(each_prompt, keys, seed))
        sampled = [[next(answers) for _ in range(self.answers)] for _ in prompts]
        if self._log is None:
            return self._graded(prompts, sampled)
        groups: list[list[Rollout]] = []
        while (begin := len(groups)) < len(prompts):
            self._progress.stop_if_requested()
            self._progress.report("grades", begin, len(prompts), "prompts")
            part = slice(begin, begin + GRADED_AT_ONCE)
            groups += self._logged(prompts[part], names[part], sampled[part], self._log)
        return groups

    def _logged(
        self, prompts: Sequence[SampledPrompt], names: Sequence[str], sampled: Sequence[Sequence[Sampled]], log: RolloutLog
    ) -> list[list[Rollout]]:
        """The groups of the log, of which those that it lacks are graded now."""
        new = [
            place for place, name in enumerate(names) if any(f"{name}:{answer}" not in log for answer in range(self.answers))
        ]  # a kill leaves some answers of a prompt
        graded = self._graded([prompts[place] for place in new], [sampled[place] for place in new])
        log.add_attempts(
            {
                f"{names[place]}:{rollout.attempt}": [rollout]
                for place, group in zip(new, graded, strict=True)
                for rollout in group
            }
        )
        return [log.attempts(name, self.answers) for name in names]

    def _graded(self, prompts: Sequence[SampledPrompt], sampled: Sequence[Sequence[Sampled]]) -> list[list[Rollout]]:
        groups = [
            AskedGroup(
                prompt.row_id,
                prompt.messages,
                prompt.tools,
                prompt.columns,
                [self._reader.read(prompt, answer.tokens, answer.ended)[0] for answer in of_prompt],
                self._training(int(max(answer.version for answer in of_prompt))),
            )
            for prompt, of_prompt in zip(prompts, sampled, strict=True)
        ]
        return [
            [
                Rollout.of(prompt.tokens, answer, grade, attempt)
                for attempt, (answer, grade) in enumerate(zip(of_prompt, grades, strict=True))
            ]
            for prompt, of_prompt, grades in zip(prompts, sampled, self.grader.grade(groups), strict=True)
        ]
