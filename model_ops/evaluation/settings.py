"""Settings of operation `evaluate`: a recipe's section, and the job's settings. Importing this file imports no torch."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from model_ops.files import LocalPath
from model_ops.graders import AnswerJudgeSettings
from model_ops.jobs import ModelError, Seed, Settings
from model_ops.serving import ServerKind

CHOSEN_WORDS = ("--host", "--port", "--model", "--model-path", "--served-model-name", "--api-key", "--trust-remote-code",
    "--speculative-config", "--speculative-draft-model-path")  # fmt: skip
"""Options of a server that the evaluation chooses, or that it never gives."""


class TaskSettings(Settings):
    """How the items of `evals` are asked: answers of the served model, its base and the champion, scored by kind of task."""

    items: int = Field(100, ge=0, le=10_000, description="Most items asked of each suite, a seeded choice. 0: none is asked")
    samples: int = Field(
        0, ge=0, le=64, description="Sampled answers to each item, besides the greedy one, by the server's default parameters"
    )
    max_new_tokens: int = Field(512, ge=1, le=2**20, description="Most tokens of one answer")
    test_seconds: float = Field(10, gt=0, le=600, description="Most seconds of one program of unit tests")
    judge: AnswerJudgeSettings | None = Field(
        None, description="Server that compares answers to items of kind `judge`. Left out: such items are not asked"
    )


class ServerDraftingSettings(Settings):
    """What the server drafts with while tokens/s and latency are measured, so that the release serves what is fastest. Each
    method and number of tokens is one more start of the server."""

    methods: list[Literal["ngram", "suffix", "drafter"]] = Field(
        default=["ngram", "suffix", "drafter"],
        description="Methods to measure besides no drafting. suffix "
        "needs the package arctic-inference where vLLM is. []: only the drafter as the recipe trains it is measured",
    )
    num_speculative_tokens: list[Annotated[int, Field(ge=1, le=64)]] | None = Field(
        None,
        min_length=1,
        description="Numbers of drafted tokens (K) to measure for each method; the drafter at most its "
        "own. Left out: the drafter's K and half of it, and each lookup's best length on validation answers",
    )


class ServerSettings(Settings):
    """A server that the evaluation starts on this machine with the models of the release: whether it loads them, whether it
    says what the project's own layers compute, and tokens/s."""

    kind: ServerKind = Field("vllm", description="Which server")
    python: Annotated[str, LocalPath("program", "a Python interpreter, such as ./venvs/vllm/bin/python")] | None = Field(
        None,
        min_length=1,
        description="Python interpreter of an environment that has the server, such as "
        "./venvs/vllm/bin/python. Left out: the environment of millrace, or else the command `vllm` on PATH",
    )
    arguments: list[str] = Field(
        default_factory=list,
        description='Further arguments of the server, as the endpoint gets them, such as ["--max-model-len", "8192"]',
    )
    start_s: float = Field(900, gt=0, le=86_400, description="Most seconds until the server can be asked")
    timeout_s: float = Field(600, gt=0, le=86_400, description="Seconds to wait for one answer")
    prompts: int = Field(32, ge=1, le=10_000, description="Held-out prompts that it answers")
    max_new_tokens: int = Field(64, ge=1, le=2**20, description="Most tokens of one answer")
    concurrencies: list[Annotated[int, Field(ge=1, le=256)]] = Field(
        default_factory=lambda: [1, 8], min_length=1, description="Requests at a time that tokens/s are measured at"
    )
    unquantized: bool = Field(True, description="Whether the unquantized form is served as well, for the ratio of tokens/s")
    drafting: ServerDraftingSettings = Field(
        default_factory=ServerDraftingSettings, description="What it drafts with while it is measured"
    )

    @field_validator("arguments")
    @classmethod
    def _leaves_what_is_chosen(cls, value: list[str]) -> list[str]:
        for word in value:
            if (name := word.partition("=")[0].replace("_", "-")) in CHOSEN_WORDS:
                raise ValueError(
                    f"it holds {name}, and the evaluation chooses models, address and drafter itself, sends no "
                    "key and runs no code of models; take it out"
                )
        return value


class EvaluationSettings(Settings):
    """Measures held-out likelihood of each model, recovery of the quantized one, acceptance length of the drafters, and the
    scores of answers to `evals`."""

    rows: int | None = Field(None, ge=1, description="Most held-out rows for the likelihood. Left out: all")
    prompts: int = Field(200, ge=1, description="Held-out prompts that the drafters are measured on")
    max_new_tokens: int = Field(128, ge=1, le=2**20, description="Most tokens of one measured answer")
    temperatures: list[Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]] = Field(
        default_factory=lambda: [0.0, 1.0],
        description="Sampling temperatures to measure acceptance at, 0 is greedy, besides "
        "the parameters of each logged request; the temperature of the drafter's answers is always among them",
    )
    batch_size: int = Field(64, ge=1, le=65_536, description="Answers decoded together")
    max_length: int = Field(4_096, ge=16, le=2**24, description="Tokens of the longest held-out row; a longer one is cut")
    seed: Seed = Field(0, description="Seed of the choice of rows, prompts and items, and of sampling")
    tasks: TaskSettings = Field(default_factory=TaskSettings, description="How the items of `evals` are asked and scored")
    server: ServerSettings | None = Field(
        None, description="A server that loads the models of the release and is measured. Left out: none is started"
    )


class EvaluateSettings(EvaluationSettings):
    """Settings of the job: the recipe's section `evaluation`, and what the recipe's other sections say of it."""

    num_speculative_tokens: int = Field(3, ge=1, le=16, description="Tokens drafted per verification (K)")
    rft_graders: list[str] = Field(default_factory=list, description="What graded the answers of the training on rewards")
    compared: list[tuple[str, str]] = Field(
        default_factory=list, description="Roles whose held-out losses are compared: a model, and the one that it started from"
    )
    parents: dict[str, str] = Field(
        default_factory=dict,
        description="By an input with rows (preferences, prompts): the role of the model that training on them started from",
    )

    @property
    def asked_server(self) -> ServerSettings:
        """The server to measure. Raises ModelError where the settings ask for none."""
        if self.server is None:
            raise ModelError("the settings ask for no server: give evaluation.server")
        return self.server
