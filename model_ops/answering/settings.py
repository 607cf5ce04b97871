"""Who answers for a drafter to learn from, and how a server is asked. Importing this module imports no torch."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator

from model_ops.server_address import plain_address
from model_ops.training.settings import Seed, Settings


class EndpointSettings(Settings):
    """A server that speaks the OpenAI API."""

    base_url: str = Field(description="Address of the API, such as http://localhost:8000/v1, without credentials")
    model: str = Field(min_length=1, description="Name of the model at the server")
    api_key_env: str | None = Field(
        None, description="Name of the environment variable that holds the API key. Left out: no key is sent")
    concurrency: int = Field(32, ge=1, le=1024, description="Requests at a time")
    timeout_s: float = Field(600, gt=0, le=86_400, description="Seconds to wait for one answer")
    retries: int = Field(4, ge=0, le=20, description="How often a request that met a busy or failing server is repeated")

    @field_validator("api_key_env")
    @classmethod
    def _name_of_a_variable(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):  # it may be the key itself: not shown
            raise ValueError("this is no name of an environment variable; give one such as JUDGE_API_KEY, not the key itself")
        return value

    _plain_address = field_validator("base_url")(plain_address)


class GenerateSettings(Settings):
    """The target's answers to prompts of the traffic, served ones or new ones, which a drafter learns from."""

    prompts: int | None = Field(
        None, ge=1, description="Most turns to answer, in a seeded choice of conversations. Left out: all")
    temperature: float | None = Field(
        None, ge=0, le=100, description="Sampling temperature of every answer, 0 is greedy. Left out: that of each logged "
        "request")
    top_p: float | None = Field(
        None, gt=0, le=1, description="Nucleus sampling of every answer. Left out: that of each logged request")
    served_as: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, description="Model names under which the log shows these very weights: their served token ids "
        "are used as they are. Rows that name the digest of the weights always are")
    endpoint: EndpointSettings | None = Field(
        None, description="Server that holds the very weights of the target and answers. Left out: the project's own generator")
    max_new_tokens: int = Field(
        128, ge=1, le=2**20, description="Most tokens of one answer; fewer where the logged request asked for fewer")
    batch_size: int = Field(64, ge=1, le=65_536, description="Answers that the project's own generator decodes together")
    seed: Seed = Field(0, description="Seed of the choice of turns and of sampling")

    @property
    def measured_at(self) -> float:
        """The temperature that gates look at: the one given, else 1."""
        return 1.0 if self.temperature is None else self.temperature
