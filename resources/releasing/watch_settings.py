"""The recipe's `release.watch`: for how long a new champion is watched, and what brings the one before it back."""

from __future__ import annotations

from pydantic import Field

from model_ops.settings import Settings


class WatchSettings(Settings):
    """What is compared after a promotion, and how often a good release may be rolled back by mistake."""

    hours: float = Field(
        24, ge=0.5, le=720, description="Hours after a promotion in which the new champion is watched")
    false_alarm: float = Field(
        0.01, gt=0, le=0.2, description="Largest probability that a promotion of a release that is as good as it should be is "
        "rolled back, over all looks and signals together")
    acceptance_drop: float = Field(
        0.1, gt=0, lt=1, description="Tolerated fall of the served acceptance length, as a share of what it should be")
    bad_answers_rise: float = Field(
        0.03, gt=0, lt=1, description="Tolerated rise of the share of requests without an answer, and of the mean share of a "
        "session's answers that are errors or empty, cut off or broken, refused, or rated badly")
    reference_days: int = Field(
        7, ge=1, le=60, description="Days before the promotion from which the served windows and sessions of the champion "
        "before it are taken, to say what should be")
