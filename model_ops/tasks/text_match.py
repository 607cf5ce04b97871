"""Tasks that look for a text in the answer: `exact`, `regex` and `number`.

    score_exact(item, " Paris ")         # white space at the ends is no difference
    score_number(item, "... so 18 eggs. #### 18")       # 1.0
    pattern_problem(r"(a+")          # "missing ), unterminated subpattern": why it is no pattern; None if it is one
    matches(r"(a+)+$", text)         # False after SECONDS

`number` compares the answer's final number with the item's, as GSM8K is scored: the number after the last `####`, else the last
number of the text (Cobbe et al. 2021, arXiv 2110.14168). Searches are bounded in time, because a pattern of a file may
backtrack without end.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Literal

import regex
from pydantic import field_validator

from model_ops.tasks.item import Item


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


MARK = "####"
MINUS = str.maketrans({"\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "$": None, "\N{EURO SIGN}": None})
"""Signs that are written otherwise, and signs of currencies, which may stand between a minus and its number."""
NUMBER = re.compile(
    r"(?:(?<![\w.)])[-+])?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|(?:(?<![\w.)])[-+])?(?<!\d)\.\d+(?:[eE][-+]?\d+)?"
)


class NumberItem(Item):
    """A question whose answer ends in a number."""

    kind: Literal["number"] = "number"
    answer: str
    """The right number, as text such as `1,250` or `0.5`."""


def score_number(item: NumberItem, text: str) -> float:
    """1.0 if the final numbers are equal as numbers (18 equals 18.0), else 0.0."""
    found, wanted = final_number(text), final_number(item.answer)
    return float(found is not None and found == wanted)


def final_number(text: str) -> Decimal | None:
    """The number after the last ####, else the last number; None without a number."""
    text = text.translate(MINUS)
    marked = text.rpartition(MARK)
    found = NUMBER.findall(marked[2])[:1] if marked[1] else NUMBER.findall(text)[-1:]
    try:
        return Decimal(found[0].replace(",", "")) if found else None
    except InvalidOperation:
        return None


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
