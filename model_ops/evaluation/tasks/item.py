"""Fields that every evaluation item has."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Item(BaseModel):
    """One question."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    suite: str
    item_id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    """messages, tools: in OpenAI's form, rendered by the model's own chat template."""
