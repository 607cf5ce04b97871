"""Answers that a model sampled while it trained, and their grades, kept as they are paid for.

    log = AnswerLog(work / "sampled.jsonl")
    log.add_answers(round=0, prompts=[3, 1], answers=[[[5, 6], [7]], ...])             # tokens
    log.add_grades(chunk=0, grades=[[Grade(1.0), Grade(0.0)], ...], sides=[[0, 1], ...])    # of the chunk's next prompts

Each call appends one line and flushes it to the disk. A killed run that continues reads what is there: it samples and grades
nothing twice. Answers follow from weights and seeds, so they are those that the continued run would have sampled.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from model_ops.files import JsonLines
from model_ops.graders import Grade
from model_ops.rollouts import Tokens

Sides = list[int] | str
"""Places of a prompt's chosen and rejected answer, or why it has none."""


@dataclass
class SampledChunk:
    """The answers to some prompts that were asked together."""

    round: int
    prompts: list[int]
    """Places of the prompts among all."""
    answers: list[list[Tokens]]
    """By prompt: the tokens of each answer."""
    grades: list[list[Grade]] = field(default_factory=list)
    """Of the first prompts."""
    sides: list[Sides] = field(default_factory=list)


class AnswerLog:
    """The file of one training."""

    def __init__(self, path: Path):
        self._lines, self.chunks = JsonLines(path), list[SampledChunk]()
        for _, record in self._lines.read():
            self._take(record)

    def before(self, round: int) -> int:
        """Number of chunks of earlier rounds."""
        return sum(chunk.round < round for chunk in self.chunks)

    def add_answers(self, round: int, prompts: list[int], answers: list[list[list[int]]]) -> None:
        self._add({"round": round, "prompts": prompts, "answers": answers})

    def add_grades(self, chunk: int, grades: list[list[Grade]], sides: list[Sides]) -> None:
        said = [[asdict(grade) for grade in of_prompt] for of_prompt in grades]
        self._add({"chunk": chunk, "grades": said, "sides": sides})

    def _add(self, record: dict[str, Any]) -> None:
        self._lines.add(record)
        self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        if "answers" in record:
            answers = [[np.array(tokens, np.int32) for tokens in of_prompt] for of_prompt in record["answers"]]
            self.chunks.append(SampledChunk(record["round"], record["prompts"], answers))
        else:
            grades = [[Grade(**grade) for grade in of_prompt] for of_prompt in record["grades"]]
            self.chunks[record["chunk"]].grades += grades
            self.chunks[record["chunk"]].sides += record["sides"]
