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
    signal: str
    value: float | None = None
    """What was served, with its 95 % interval (low, high)."""
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    """The worst that it may be."""
    evidence: float = 1.0
    """Evidence that the value is worse; it counts as shown from `needed` on."""
    needed: float = float("inf")
    words: str = ""
    """The result in one sentence."""
    problem: str = ""
    """Why there is no result."""

    @property
    def is_outside(self) -> bool:
        return self.evidence >= self.needed
