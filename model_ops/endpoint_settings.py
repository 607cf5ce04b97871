"""Settings of requests to an OpenAI-compatible server: address, model, key, connections. Imports no torch."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from model_ops.server_address import plain_address
from model_ops.settings import Settings


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
            raise ValueError("this is not the name of an environment variable; give a name such as JUDGE_API_KEY, not the key "
                             "itself")
        return value

    _plain_address = field_validator("base_url")(plain_address)
