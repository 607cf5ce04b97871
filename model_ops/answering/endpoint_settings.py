"""Settings of requests to an OpenAI-compatible server: address (checked), model, key, connections. Imports no torch."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from model_ops.jobs import Settings


def plain_address(url: str) -> str:
    """The address without a trailing slash. Raises ValueError if it is not an HTTP address, or has credentials or a query."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a server's address begins with http:// or https://, such as http://localhost:8000/v1")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("the port of a server's address is a number from 0 to 65535") from None
    if parts.username or parts.password or parts.query:
        raise ValueError("a server's address holds no credentials and no query: name the environment variable of its key")
    return url.rstrip("/")


def variable_name(value: str | None) -> str | None:
    """The name of an environment variable. Raises ValueError for any other text, which it does not show: it may be the key."""
    if value is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError(
            "this is not the name of an environment variable; give a name such as JUDGE_API_KEY, not the key itself"
        )
    return value


class EndpointSettings(Settings):
    """A server that speaks the OpenAI API."""

    base_url: str = Field(description="Address of the API, such as http://localhost:8000/v1, without credentials")
    model: str = Field(min_length=1, description="Name of the model at the server")
    api_key_env: str | None = Field(
        None, description="Name of the environment variable that holds the API key. Left out: no key is sent"
    )
    concurrency: int = Field(32, ge=1, le=1024, description="Requests at a time")
    timeout_s: float = Field(600, gt=0, le=86_400, description="Seconds to wait for one answer")
    retries: int = Field(4, ge=0, le=20, description="How often a request that met a busy or failing server is repeated")

    _variable = field_validator("api_key_env")(variable_name)
    _plain_address = field_validator("base_url")(plain_address)


class PriceSettings(Settings):
    """Prices of the endpoint, in one currency."""

    input: float = Field(ge=0, allow_inf_nan=False, description="Price of a million prompt tokens")
    output: float = Field(ge=0, allow_inf_nan=False, description="Price of a million answer tokens")
