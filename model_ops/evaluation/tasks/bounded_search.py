"""Searches for a pattern in a text for a bounded time, because a pattern of a file may backtrack without end.

    pattern_problem(r"(a+")          # "missing ), unterminated subpattern": why it is no pattern; None if it is one
    matches(r"(a+)+$", text)         # False after SECONDS
"""

from __future__ import annotations

from functools import lru_cache

import regex

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
