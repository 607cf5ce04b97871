"""What one signal of a new champion says, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass

SIGNALS = ("acceptance", "server_errors", "failed_answers", "broken_answers", "refusals", "bad_feedback")
"""What is watched. The rate of false alarms is shared by all of them, half for the bounds and half for the evidence."""


def alpha_of(false_alarm: float) -> float:
    """The share of the rate that a bound, or the evidence, of one signal has."""
    return false_alarm / (2 * len(SIGNALS))


@dataclass(frozen=True)
class Finding:
    """value: what was served, with its 95 % interval (low, high). bound: the worst that it may be. evidence: that it is worse;
    from `needed` on it is believed. words: the sentence. problem: why there is nothing to say."""

    signal: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    evidence: float = 1.0
    needed: float = float("inf")
    words: str = ""
    problem: str = ""

    @property
    def is_outside(self) -> bool:
        return self.evidence >= self.needed
