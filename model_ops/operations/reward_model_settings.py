"""Settings of operation `reward_model`. Importing this file imports no torch."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from model_ops.jobs import Settings
from model_ops.training import TuningSettings


class RewardGate(Settings):
    """What a reward model must reach on held-out pairs before it may grade: bounds on the lower end of 95 % intervals."""

    accuracy: float | None = Field(
        0.5,
        ge=0,
        le=1,
        description="Least share of held-out pairs in which the chosen answer has the higher score. null: no bound",
    )
    above_longer: float | None = Field(
        0.0,
        ge=-1,
        le=1,
        description="Least distance of this share from that of a rule by which the longer answer wins. null: no bound",
    )


class RewardModelSettings(TuningSettings):
    """A model that scores answers, trained on pairs of them (Bradley-Terry). With adapters, the default learning rate is ten
    times the preset's."""

    enabled: bool = Field(True, description="false: no reward model is trained")
    centring: float = Field(
        0.01, ge=0, le=1, description="Weight of the squared sum of a pair's scores, which keeps scores near 0"
    )
    margin: float = Field(
        1.0,
        ge=0,
        le=10,
        description="By how much the chosen score has to be higher where the grades of both answers differ most, in proportion "
        "for smaller differences. Rows without grades have no margin; 0 switches it off",
    )
    overflow: Literal["drop"] = Field("drop", description="What happens to a pair longer than `max_length`: it is left out")
    gate: RewardGate = Field(default_factory=RewardGate, description="What it must reach before it may grade")

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"epochs": 1.0, "learning_rate": 2e-5, "tokens_per_step": 8_192, "max_length": 2_048},
        "balanced": {"epochs": 1.0, "learning_rate": 1e-5, "tokens_per_step": 16_384, "max_length": 4_096},
        "thorough": {"epochs": 1.0, "learning_rate": 9e-6, "tokens_per_step": 65_536, "max_length": 8_192},
    }
    COMMON: ClassVar[dict[str, Any]] = {**TuningSettings.COMMON, "most_epochs": 3.0}
    LEAST_STEPS: ClassVar[int] = 30
    FEW_STEPS: ClassVar[int] = 10
