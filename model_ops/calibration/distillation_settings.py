"""Settings of the training that comes before rounding. Importing this file imports no torch."""

from typing import Any, ClassVar

from pydantic import Field, model_validator

from model_ops.training import TrainingSettings


class DistilRoundingSettings(TrainingSettings):
    """Trains the matrices that are rounded, so that the rounded model says what the float one does."""

    enabled: bool = Field(
        False,
        description="true: the matrices are trained before they are rounded to nearest, with rounding in every forward "
        "pass, to say what the float model does",
    )
    temperature: float = Field(1.0, gt=0, le=100, description="Temperature of both distributions in the divergence")

    LEAST_STEPS: ClassVar[int] = 1
    """Rounding is adapted to a sample, and one pass over it is enough."""
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"epochs": 0.25, "learning_rate": 2e-5, "tokens_per_step": 8_192, "max_length": 2_048},
        "balanced": {"epochs": 0.5, "learning_rate": 1e-5, "tokens_per_step": 32_768, "max_length": 4_096},
        "thorough": {"epochs": 1.0, "learning_rate": 1e-5, "tokens_per_step": 65_536, "max_length": 8_192},
    }

    @model_validator(mode="after")
    def _in_one_process(self):
        if not self.mesh.alone:
            raise ValueError("the training before rounding runs in one process: leave mesh out")
        return self
