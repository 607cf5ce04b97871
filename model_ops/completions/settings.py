"""Settings of what asks for answers: a server and its address, operation `generate` (a drafter's training answers), operation
`sample_answers`. Importing this file imports no torch."""

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from model_ops.jobs import Seed, Settings


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


SAMPLED_WITH = ("top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
"""Fields of a request besides temperature and top_p that the built-in generator samples with."""
RENDERED_WITH = ("chat_template_kwargs", "documents", "reasoning_effort")
"""Fields of a request that the chat template reads."""
GENERATED_WITH = (*SAMPLED_WITH, *RENDERED_WITH)


class SampleSettings(Settings):
    """Answers of a model to prompts, for others to learn."""

    model: str | None = Field(None, description="Hugging Face id of the model, where the job has no input `model`")
    temperature: float = Field(1.0, ge=0, le=100, description="Temperature, 0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus")
    request: dict[str, Any] = Field(default_factory=dict, description="Other fields of every prompt's request")
    max_new_tokens: int = Field(2_048, ge=1, le=2**20, description="Most tokens of an answer")
    batch_size: int = Field(64, ge=1, le=65_536, description="Answers that are decoded together")
    seed: Seed = Field(0, description="Seed of sampling")
