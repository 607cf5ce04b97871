"""The problems of a recipe: one sentence each, with line and key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from model_ops.jobs import Misuse


@dataclass(frozen=True)
class RecipeProblem:
    """One thing to change in a recipe."""

    sentence: str
    """What is wrong and what is expected, without line and key."""
    key: str = ""
    """The dotted key, such as `sft.lora.rank`; empty for the file as a whole."""
    line: int | None = None
    """Line of the recipe's file, from 1; None if the problem has no line (a missing key)."""

    def __str__(self) -> str:
        return f"{self.key}: {self.sentence}" if self.key else self.sentence


class RecipeProblemsError(Misuse):
    """The recipe cannot be used. `problems` has all of them, in the order of the file; the message has one line for each."""

    def __init__(self, origin: Path | str, problems: Iterable[RecipeProblem]):
        self.origin = origin
        self.problems = sorted(dict.fromkeys(problems), key=lambda problem: (problem.line is None, problem.line or 0))
        super().__init__("\n".join(self._placed(problem) for problem in self.problems))

    def _placed(self, problem: RecipeProblem) -> str:
        place = f"{self.origin}" if problem.line is None else f"{self.origin} line {problem.line}"
        return f"{place}: {problem}"
