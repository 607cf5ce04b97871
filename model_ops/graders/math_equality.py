"""Grader `math`: whether the answer's last formula or number equals the right one, as math-verify decides.

Run by function_child.py in processes that can be killed, because some formulas take minutes (9^{9^{9^9}}), and math-verify's
own time limit is a signal, which works in a main thread only. Needs the extra `math`: pip install millrace[math]."""

import re

from math_verify import parse, verify

TEXT = re.compile(r"\$|\\boxed|####|(?<![\\a-zA-Z])[a-zA-Z]{3,}")
"""A truth that is a text around a formula. Others are formulas: of `2\\pi` or `x + 1` as a text only a number would be read."""


class UnreadableTruth(ValueError):
    """The row's right answer holds no formula, so every answer would look wrong."""


def grade(answer: str, columns: dict) -> float | None:
    """1.0 if they are equal, else 0.0; None for a row without a right answer. Raises UnreadableTruth."""
    truth = columns.get("answer")
    if truth is None:
        return None
    truth = at_mark(truth)
    shown = truth if TEXT.search(truth) else f"${truth}$"
    wanted = parse(shown, parsing_timeout=None)
    if not wanted:
        raise UnreadableTruth
    return float(verify(wanted, parse(at_mark(answer), parsing_timeout=None), timeout_seconds=None))


def at_mark(text: str) -> str:
    r"""The line after the last ####, as GSM8K marks answers; the whole text where none or a later \boxed{} stands."""
    _, mark, rest = text.rpartition("####")
    line = rest.strip().partition("\n")[0]
    return line if mark and line and "\\boxed" not in rest else text
