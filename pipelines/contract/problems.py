"""What is wrong with a recipe: one problem a sentence, with its line and its key.

    except RecipeError as error:
        for problem in error.problems:
            print(problem.line, problem.key, problem.sentence)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Problem:
    """One thing to change in a recipe."""

    sentence: str
    """What is wrong and what would be right, without the place."""
    key: str = ""
    """The dotted key, such as `sft.lora.rank`; empty where the file as a whole is meant."""
    line: int | None = None
    """Line of the recipe's file, from 1; None where the problem stands in no line (a missing key)."""

    def __str__(self) -> str:
        return f"{self.key}: {self.sentence}" if self.key else self.sentence


class RecipeError(Exception):
    """The recipe cannot be used. `problems` holds each of them, in the order of the file; the message one a line."""

    def __init__(self, origin: Path | str, problems: Iterable[Problem]):
        self.origin = origin
        self.problems = sorted(dict.fromkeys(problems), key=lambda problem: (problem.line is None, problem.line or 0))
        super().__init__("\n".join(self._placed(problem) for problem in self.problems))

    def _placed(self, problem: Problem) -> str:
        place = f"{self.origin}" if problem.line is None else f"{self.origin} line {problem.line}"
        return f"{place}: {problem}"
