"""Tasks that look for a text in the answer: `exact`, `regex` and `number`.

`number` compares what the answer comes to with what the item's answer comes to; number_value.py reads both. Searches are
bounded in time, because a pattern of a file may backtrack without end.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import regex
from pydantic import field_validator

from model_ops.tasks.item import Item
from model_ops.tasks.number_value import final_number, said_number, same_number


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


class NumberItem(Item):
    """A question whose answer is a number."""

    kind: Literal["number"] = "number"
    answer: str
    """The right number, as text such as `1,250`, `4/7` or `... #### 18`."""


def score_number(item: NumberItem, text: str) -> float:
    """1.0 if the answer comes to the right value, else 0.0, also where what is right is not one value."""
    wanted = final_number(item.answer)
    said = None if wanted is None else said_number(text, wanted)
    return float(wanted is not None and said is not None and same_number(said, wanted))


SECONDS = 1.0


def pattern_problem(pattern: str) -> str | None:
    """Why the text is no regular expression; None if it is one."""
    try:
        _compiled(pattern)
    except regex.error as error:
        return str(error)
    return None


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern matches somewhere in the text; False if it takes longer than SECONDS."""
    try:
        return _compiled(pattern).search(text, timeout=SECONDS) is not None
    except TimeoutError:
        return False


@lru_cache(maxsize=1_024)
def _compiled(pattern: str) -> regex.Pattern:
    return regex.compile(pattern, regex.VERSION0)  # the syntax of Python's re
