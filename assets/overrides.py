"""Settings that Dagster's Launchpad can change for one run without changing the recipe."""

from __future__ import annotations

import dagster as dg
from pydantic import Field

from model_ops.training.settings import TrainingSettings


class TrainingOverrides(dg.Config):
    """For this run only; empty fields keep the recipe's values. Other values make another version."""

    steps: int | None = Field(default=None, description="Optimizer steps of this run instead of the recipe's")
    learning_rate: float | None = Field(default=None, description="Peak learning rate of this run instead of the recipe's")
    seed: int | None = Field(default=None, description="Seed of row order and initialisation instead of the recipe's")

    def applied_to(self, settings: TrainingSettings) -> TrainingSettings:
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        return type(settings).model_validate({**settings.model_dump(), **given})
