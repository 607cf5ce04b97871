"""Fields that every evaluation item has, and the item of task `judge`: a judge model says which of two answers is better.

The comparison of answers is in model_ops/graders/judge.py. The item of task `record` is for environments and agents."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Item(BaseModel):
    """One question."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    suite: str
    item_id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    """messages, tools: in OpenAI's form, rendered by the model's own chat template."""


class JudgedItem(Item):
    """A question whose answers a judge compares."""

    kind: Literal["judge"] = "judge"
    reference: str = ""
    """An answer that is known to be right, which the judge sees; "" for none."""


class RecordItem(Item):
    """A prompt for an environment or an agent, which grades its own attempts: no answer is scored."""

    kind: Literal["record"] = "record"
    record: dict[str, Any]
    """What the environment or the agent is told beside the messages."""
