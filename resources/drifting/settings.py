"""The recipe's `drift` settings: what traffic is compared with, and how often a false alarm may come."""

from typing import Annotated

from pydantic import Field, field_validator

from model_ops.jobs import Settings


class DriftSettings(Settings):
    """Whether traffic is compared with the release's reference window, and at which rate of false alarms."""

    enabled: bool = Field(True, description="false: traffic is not compared with a reference window")
    reference_days: int = Field(
        28,
        ge=4,
        le=366,
        description="Days of the reference window. The first quarter says which n-grams and categories are "
        "known, the others are compared with. From 19 days on, days are compared with the same days of the week only",
    )
    windows: list[Annotated[int, Field(ge=1, le=31)]] = Field(
        default_factory=lambda: [1, 7],
        min_length=1,
        max_length=4,
        description="Lengths in days of the windows that are "
        "compared: a short one finds a large change early, a long one a small change at all",
    )
    false_alarms_per_1000_days: float = Field(
        1.0,
        gt=0,
        le=100,
        description="Most false alarms that are expected in 1,000 days without a change, over all tests and windows together",
    )
    least_sessions: int = Field(
        20, ge=2, le=1_000_000, description="Sessions that a window needs to be compared; one with fewer is named instead"
    )
    acceptance_drop: float = Field(
        0.05, gt=0, lt=1, description="Fall of the served acceptance length that is worth finding, as a share of it"
    )

    @field_validator("windows")
    @classmethod
    def _ascending(cls, value: list[int]) -> list[int]:
        return sorted(set(value))
