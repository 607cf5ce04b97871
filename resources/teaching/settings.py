"""Settings of a teacher at an OpenAI-compatible endpoint. Importing this file imports no torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from model_ops.endpoint_settings import EndpointSettings
from model_ops.settings import Settings

OF_THE_RESULT = ("base_url", "model", "licence", "max_rows", "temperature", "top_p", "max_tokens", "request", "most_failed")
"""Settings that can change the answers. The others say how fast and for how much they are asked for."""


class PriceSettings(Settings):
    """Prices of the endpoint, in one currency."""

    input: float = Field(ge=0, allow_inf_nan=False, description="Price of a million prompt tokens")
    output: float = Field(ge=0, allow_inf_nan=False, description="Price of a million answer tokens")


class TeacherSettings(EndpointSettings):
    """A teacher at an OpenAI-compatible endpoint, whose answers replace the logged ones in training."""

    licence: str = Field(min_length=1, max_length=200, description="Licence or terms under which the teacher's answers may be "
                         "trained on, as the release's report shows it")
    trains: Literal["sft", "student", "both"] = Field(
        "both", description="Which stages learn the teacher's answers instead of the logged ones")
    max_rows: int | None = Field(None, ge=1, description="Most training rows to ask for, drawn by hash; the others are left "
                                 "out. Left out: all")
    temperature: float = Field(0.7, ge=0, le=2, description="Temperature of the answers")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus of the answers")
    max_tokens: int = Field(2_048, ge=1, le=2**20, description="Most tokens of an answer; a cut answer is not used")
    request: dict[str, Any] = Field(default_factory=dict, description="Other fields of the request, sent as they are")
    requests_per_minute: float | None = Field(None, gt=0, le=1e6, description="Rate limit. Left out: none")
    tokens_per_minute: float | None = Field(
        None, gt=0, le=1e9, description="Rate limit of prompt and answer tokens together. Left out: none")
    price: PriceSettings | None = Field(None, description="Prices, to count cost with. Left out: cost is not counted")
    max_cost: float | None = Field(
        None, gt=0, le=1e9, description="Most that the answers may cost, those of earlier runs for the same rows included. "
        "Asking stops before it is passed. Left out: no limit")
    most_failed: float = Field(
        0.1, ge=0, le=1, description="Largest share of rows without a usable answer; with more the stage ends")
    concurrency: int = Field(16, ge=1, le=1024, description="Requests at a time")
    timeout_s: float = Field(300, gt=0, le=86_400, description="Seconds to wait for one answer")
    retries: int = Field(6, ge=0, le=20, description="How often a request that met a busy or failing server is repeated")

    @model_validator(mode="after")
    def _a_limit_needs_prices(self):
        if self.max_cost is not None and self.price is None:
            raise ValueError("max_cost is set and price is not, so no cost can be counted: give price.input and price.output")
        taken = {"model", "messages", "tools", "temperature", "top_p", "max_tokens", "n", "stream"} & self.request.keys()
        if taken:
            raise ValueError(f"request holds {min(taken)}, which millrace sets itself: take it out of request")
        return self

    @property
    def sampling(self) -> dict[str, Any]:
        """The fields of a request that say how answers are drawn."""
        return {**self.request, "temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}

    def counted(self) -> dict[str, Any]:
        """The settings that are part of the dataset's version."""
        return self.model_dump(mode="json", include=set(OF_THE_RESULT))
