"""Settings of the training that comes before rounding. Importing this file imports no torch."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from model_ops.jobs import Settings
from model_ops.training import TrainingSettings


class RoundingAdapterSettings(Settings):
    """Low-rank adapters that are added to the matrices before these are rounded: W + (alpha / rank) B A."""

    rank: int = Field(16, ge=1, le=65_536, description="Rank of an adapter: columns of B, rows of A")
    alpha: float = Field(32.0, gt=0, le=1e6, description="Scale: the update is multiplied by alpha / rank")


class DistilRoundingSettings(TrainingSettings):
    """Trains the matrices that are rounded, so that the rounded model says what the float one does."""

    enabled: bool = Field(
        False,
        description="true: the matrices are trained before they are rounded to nearest, with rounding in every forward "
        "pass, to say what the float model does",
    )
    method: Literal["full", "lora"] = Field(
        "full",
        description="full: every weight of the matrices is trained. lora: adapters are, and what is rounded is the sum "
        "of matrix and adapter; gradients and optimizer state are as small as the adapters, and the float model is in memory "
        "once. Without a learning_rate, the preset's times ten",
    )
    lora: RoundingAdapterSettings | None = Field(
        None, description="The adapters, for method lora. Left out: the defaults below"
    )
    temperature: float = Field(1.0, gt=0, le=100, description="Temperature of both distributions in the divergence")

    LEAST_STEPS: ClassVar[int] = 1
    """Rounding is adapted to a sample, and one pass over it is enough."""
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"epochs": 0.25, "learning_rate": 2e-5, "tokens_per_step": 8_192, "max_length": 2_048},
        "balanced": {"epochs": 0.5, "learning_rate": 1e-5, "tokens_per_step": 32_768, "max_length": 4_096},
        "thorough": {"epochs": 1.0, "learning_rate": 1e-5, "tokens_per_step": 65_536, "max_length": 8_192},
    }

    STAY_OPEN: ClassVar[dict[str, str]] = {**TrainingSettings.STAY_OPEN, "lora": "method full has no adapters"}
    ADAPTERS_LEARN_FASTER: ClassVar[float] = 10.0

    @model_validator(mode="after")
    def _adapters_belong_to_lora(self):
        if self.lora is not None and self.method != "lora":
            raise ValueError(f"lora is for method lora, and distil.method is {self.method}: set it to lora, or leave lora out")
        return self

    @model_validator(mode="after")
    def _in_one_process(self):
        if not self.mesh.alone:
            raise ValueError("the training before rounding runs in one process: leave mesh out")
        return self

    def resolved(self):
        """Missing values from the preset; with adapters its learning rate times ten, and the defaults of
        RoundingAdapterSettings."""
        filled = super().resolved()
        if self.method == "full":
            return filled
        changes: dict[str, Any] = {"lora": self.lora or RoundingAdapterSettings()}
        if self.learning_rate is None:
            changes["learning_rate"] = filled.learning_rate * self.ADAPTERS_LEARN_FASTER
        return filled.model_copy(update=changes)
