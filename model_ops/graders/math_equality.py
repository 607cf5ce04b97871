"""Grader `math`: whether the answer's last formula or number equals the right one, as math-verify decides.

Run by function_child.py in processes that can be killed, because some formulas take minutes (9^{9^{9^9}}), and math-verify's
own time limit is a signal, which works in a main thread only. Needs the extra `math`: pip install millrace[math].
"""

from math_verify import parse, verify


class UnreadableTruth(ValueError):
    """The row's right answer holds no formula, so every answer would look wrong."""


def grade(answer: str, columns: dict) -> float | None:
    """1.0 if they are equal, else 0.0; None for a row without a right answer. Raises UnreadableTruth."""
    truth = columns.get("answer")
    if truth is None:
        return None
    wanted = parse(truth, parsing_timeout=None) or parse(f"${truth}$", parsing_timeout=None)
    if not wanted:
        raise UnreadableTruth
    return float(verify(wanted, parse(answer, parsing_timeout=None), timeout_seconds=None))
