"""What the Launchpad can change for one run without touching the recipe. Another value makes another version."""

from __future__ import annotations

import dagster as dg
from pydantic import Field

from model_ops.training.settings import TrainingSettings


class TrainingOverrides(dg.Config):
    """Left empty, the recipe's own values hold."""

    steps: int | None = Field(default=None, description="optimizer steps, instead of the recipe's")
    learning_rate: float | None = Field(default=None, description="peak learning rate, instead of the recipe's")
    seed: int | None = Field(default=None, description="seed of order and initialisation, instead of the recipe's")

    def applied_to(self, settings: TrainingSettings) -> TrainingSettings:
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        return type(settings).model_validate({**settings.model_dump(), **given})
