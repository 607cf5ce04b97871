"""Settings that a person writes: what every settings model of this package shares. Importing this file imports no torch."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Settings(BaseModel):
    """Settings that a person writes: unknown keys are refused, values are checked where they enter."""

    model_config = ConfigDict(extra="forbid")

    def resolved(self) -> Self:
        """The settings with every open value filled. These have none; settings with presets override it."""
        return self
