"""The recipe's `release.gates`: bounds of the gates, on by default."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Gates(BaseModel):
    """Bounds that a release must meet before anyone may approve it. null switches a gate off."""

    model_config = ConfigDict(extra="forbid")

    recovery: float | None = Field(
        0.99, gt=0, le=1, description="Lowest recovery of the served model, exp(reference loss - served loss) per answer "
        "token. A value beyond 1 by more than its noise fails as well. null: no gate",
    )
    loss_above_base: float | None = Field(
        0.02, ge=0, description="Most nats per answer token by which the served model's held-out loss may exceed the base "
        "model's (upper end of the 95 % interval). null: no gate")
    loss_above_champion: float | None = Field(
        0.02, ge=0, description="The same against the model that the endpoint serves now. It holds while no other model was "
        "served. null: no gate")
    loss_above_teacher: float | None = Field(
        0.1, ge=0, description="The same of the student against its teacher, before quantization, if the student is served. "
        "null: no gate")
    accuracy_below_base: float | None = Field(
        0.1, ge=0, le=1, description="Most share of an evaluation suite's score that the served model may lose against the "
        "base model (lower end of the 95 % interval), for each suite that is asked. null: no gate")
    accuracy_below_champion: float | None = Field(
        0.1, ge=0, le=1, description="The same against the model that the endpoint serves now. null: no gate")
    acceptance_length: float | None = Field(
        1.2, ge=1, description="Lowest acceptance length (lower end of the 95 % interval), sampled as the traffic is, at the "
        "recipe's num_speculative_tokens. null: no gate"
    )
    acceptance_gain: float | None = Field(
        0.0, ge=-1, description="Least relative gain of the drafter's acceptance length over the better of n-gram and suffix "
        "lookup, which need no training, at their own best draft lengths (lower end of the 95 % interval). null: no gate")
