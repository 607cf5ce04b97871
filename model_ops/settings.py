"""Base class of all settings models. Importing this file imports no torch."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Settings(BaseModel):
    """Settings that a person writes: unknown keys are refused and values are checked when they are read."""

    model_config = ConfigDict(extra="forbid")

    def resolved(self) -> Self:
        """The settings with every missing value filled in. Settings with presets override it; here nothing is missing."""
        return self
