"""Settings of operation `generate`, which makes a drafter's training answers. Importing this file imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from model_ops.answering.endpoint_settings import EndpointSettings
from model_ops.jobs import Seed, Settings


class GenerateSettings(Settings):
    """The target's answers to prompts of the traffic, served ones or new ones, which a drafter learns from."""

    prompts: int | None = Field(
        None, ge=1, description="Most turns to answer, in a seeded choice of conversations. Left out: all"
    )
    temperature: float | None = Field(
        None, ge=0, le=100, description="Sampling temperature of every answer, 0 is greedy. Left out: as in each logged request"
    )
    top_p: float | None = Field(
        None, gt=0, le=1, description="Nucleus sampling of every answer. Left out: as in each logged request"
    )
    served_as: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list,
        description="Model names under which the log shows these very weights: their served token ids "
        "are used as they are. Rows that name the digest of the weights always are",
    )
    endpoint: EndpointSettings | None = Field(
        None, description="Server that holds the very weights of the target and answers. Left out: the project's own generator"
    )
    max_new_tokens: int = Field(
        128, ge=1, le=2**20, description="Most tokens of one answer; fewer where the logged request asked for fewer"
    )
    batch_size: int = Field(64, ge=1, le=65_536, description="Answers that the project's own generator decodes together")
    seed: Seed = Field(0, description="Seed of the choice of turns and of sampling")

    @property
    def measured_at(self) -> float:
        """The temperature at which gates compare acceptance: the given one, else 1."""
        return 1.0 if self.temperature is None else self.temperature
