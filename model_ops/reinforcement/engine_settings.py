"""Settings of the engine that samples rollouts. Importing this file imports no torch."""

from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema, field_validator

from model_ops.answering import plain_address
from model_ops.files import LocalPath
from model_ops.jobs import Settings

ENGINES = ("in_process", "vllm")


def _engine(given: Any) -> str | list[str]:
    """A word, or addresses."""
    if given in ENGINES:
        return given
    addresses = [given] if isinstance(given, str) else given
    if (
        not isinstance(addresses, list)
        or not addresses
        or not all(isinstance(each, str) and "://" in each for each in addresses)
    ):
        raise ValueError("it is in_process, vllm, or the address of a vLLM server, such as http://localhost:8000, or several")
    return [plain_address(each) for each in addresses]


ADDRESS = {"type": "string", "pattern": "://"}
EngineName = Annotated[
    str | list[str],
    PlainValidator(_engine),
    WithJsonSchema({"anyOf": [{"enum": [*ENGINES]}, ADDRESS, {"type": "array", "items": ADDRESS, "minItems": 1}]}),
]
"""Where answers are sampled: here, in a server that is started here, or in servers at addresses."""
CHOSEN_WORDS = (
    "--host", "--port", "--model", "--served-model-name", "--api-key", "--trust-remote-code", "--logprobs-mode",
    "--generation-config", "--speculative-config",
)  # fmt: skip
"""Options of vLLM that the training chooses, or that it never gives."""


class RolloutServerSettings(Settings):
    """The vLLM server that `engine: vllm` starts on this machine."""

    python: Annotated[str, LocalPath("program", "a Python interpreter, such as ./venvs/vllm/bin/python")] | None = Field(
        None,
        min_length=1,
        description="Python interpreter of an environment that has vLLM, such as ./venvs/vllm/bin/python. Left out: the "
        "environment of millrace, or else the command `vllm` on PATH",
    )
    arguments: list[str] = Field(
        default_factory=list,
        description='Further arguments of the server, such as ["--gpu-memory-utilization", "0.4"] where it shares a device '
        "with the training",
    )
    start_s: float = Field(900, gt=0, le=86_400, description="Most seconds until the server can be asked")

    @field_validator("arguments")
    @classmethod
    def _leaves_what_is_chosen(cls, value: list[str]) -> list[str]:
        for word in value:
            if (name := word.partition("=")[0].replace("_", "-")) in CHOSEN_WORDS:
                raise ValueError(f"it holds {name}, which the training chooses itself or never gives; take it out")
        return value
