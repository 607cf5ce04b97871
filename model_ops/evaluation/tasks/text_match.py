"""Tasks `exact` and `regex`: the answer equals a text, or contains a match of a pattern.

    score_exact(item, " Paris ")         # white space at the ends is no difference
"""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from model_ops.evaluation.tasks.bounded_search import matches, pattern_problem
from model_ops.evaluation.tasks.item import Item


class ExactItem(Item):
    """A question with one accepted answer."""

    kind: Literal["exact"] = "exact"
    answer: str
    """The only accepted text."""


class RegexItem(Item):
    """A question whose answer matches a pattern."""

    kind: Literal["regex"] = "regex"
    pattern: str
    """A regular expression of Python's `re`, searched for anywhere in the answer."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        if (problem := pattern_problem(value)) is not None:
            raise ValueError(f"the pattern is no regular expression: {problem}")
        return value


def score_exact(item: ExactItem, text: str) -> float:
    """1.0 if the texts are equal up to white space at their ends, else 0.0."""
    return float(text.strip() == item.answer.strip())


def score_regex(item: RegexItem, text: str) -> float:
    """1.0 if the pattern matches somewhere, else 0.0. The search takes a bounded time."""
    return float(matches(item.pattern, text))
