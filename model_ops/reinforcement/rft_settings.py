"""Settings of reinforcement fine-tuning. Importing this file imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, WithJsonSchema, field_validator, model_validator

from model_ops.completions import plain_address
from model_ops.files import LocalPath
from model_ops.graders import GraderSettings
from model_ops.jobs import Settings
from model_ops.training import TrainingSettings, TuningSettings

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
CHOSEN_WORDS = ("--host", "--port", "--model", "--served-model-name", "--api-key", "--trust-remote-code", "--logprobs-mode",
    "--generation-config", "--speculative-config")  # fmt: skip
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


PolicyLossName = Literal["grpo", "dr_grpo", "rloo", "gspo", "cispo", "dppo", "kimi_k2"]
Advantage = Literal["group", "centred", "leave_one_out", "reinforce_plus"]
Aggregation = Literal["token", "rollout", "constant"]
LOOKUP_DRAFTERS = ("ngram", "suffix")
FILE_AND_NAME = r".*\.py:[^\W\d]\w*$"
TASKSETS = "verifiers"
"""The agent that plays tasksets of that library."""
OF_LOSS: dict[str, tuple[Advantage, Aggregation]] = {
    "grpo": ("group", "token"), "dr_grpo": ("centred", "constant"), "rloo": ("leave_one_out", "rollout"),
    "gspo": ("group", "rollout"), "cispo": ("group", "token"), "dppo": ("centred", "token"),
    "kimi_k2": ("centred", "rollout"),
}  # fmt: skip
"""Advantage and aggregation of each loss, as its source has them; the mean over tokens of grpo is that of DAPO."""
READ_BY: dict[str, tuple[str, ...]] = {
    "clip_low": ("grpo", "dr_grpo", "rloo", "gspo", "dppo"), "clip_high": ("grpo", "dr_grpo", "rloo", "gspo", "dppo"),
    "cap": ("cispo",), "tau": ("kimi_k2",),
}  # fmt: skip
"""Key of a loss -> the losses that read it."""


class RftSettings(TuningSettings):
    """Reinforcement fine-tuning: the model answers prompts while it trains, and answers that a grader likes become likelier."""

    enabled: bool = Field(True, description="false: nothing is learnt from rewards")
    grader: GraderSettings | None = Field(
        None,
        description="Who says how good an answer is: `verifier`, `rewards.py:grade`, or several: "
        "[reinforcement.md](reinforcement.md#graders). Left out: the environment or the agent says it",
    )
    environment: (
        Annotated[str, Field(pattern=FILE_AND_NAME), LocalPath("function", "a class of a file, as envs.py:Shop")] | None
    ) = Field(
        None,
        description="A class of a file, as `envs.py:Shop`, in whose objects the model acts over several turns: "
        "[environments.md](environments.md). Left out: none",
    )
    agent: (
        Annotated[
            str, Field(pattern=f"{FILE_AND_NAME}|^{TASKSETS}$"), LocalPath("function", "a function of a file, as agent.py:run")
        ]
        | None
    ) = Field(
        None,
        description="A function of a file, as `agent.py:run`, that asks the model at an address and returns a grade: "
        "[environments.md](environments.md#agents). `verifiers`: the prompts are tasks of that library's "
        "[tasksets](environments.md#tasksets-of-verifiers). Left out: none",
    )
    python: Annotated[str, LocalPath("program", "a Python interpreter, such as ./venvs/agent/bin/python")] | None = Field(
        None,
        min_length=1,
        description="environment, agent: Python interpreter of an environment that has what they import, such as "
        "./venvs/agent/bin/python. Left out: that of millrace",
    )
    max_turns: int = Field(8, ge=1, le=1_000, description="environment, agent: most turns of the model in one attempt")
    seconds: float | None = Field(
        None,
        gt=0,
        le=86_400,
        description="environment: most seconds of one call of its methods; making it has 60 of its own. agent: most seconds of "
        "an attempt, beside those in which the model answers. Left out: 10, and 300 of an agent",
    )
    engine: EngineName = Field(
        "in_process",
        description="What samples: in_process, the weights in training; vllm, a server that is started here; or addresses of "
        "vLLM servers that you started: [reinforcement.md](reinforcement.md#engines)",
    )
    server: RolloutServerSettings | None = Field(None, description="The server of `engine: vllm`. Left out: its defaults")
    drafter: Annotated[str, LocalPath("folder", "the directory of a drafter, or `ngram`, `suffix`", LOOKUP_DRAFTERS)] | None = (
        Field(
            None,
            min_length=1,
            description="in_process: what drafts tokens that the model verifies exactly: ngram, suffix, or the directory of a "
            "trained drafter of this model. Answers have the same distribution and may come faster. Left out: none",
        )
    )
    loss: PolicyLossName = Field(
        "grpo", description="What is minimised; [reinforcement.md](reinforcement.md#losses) says when to choose which"
    )
    advantage: Advantage | None = Field(
        None,
        description="How a grade is compared with those of the other answers to its prompt. Left out: as the loss's source",
    )
    aggregation: Aggregation | None = Field(
        None,
        description="What the loss is a mean over: tokens of the step; rollouts, each a mean over its tokens; or "
        "rollouts times max_new_tokens. Left out: as the loss's source",
    )
    clip_low: float | None = Field(
        None, ge=0, lt=1, description="How far a ratio may fall and still give a gradient. Left out: the loss's own"
    )
    clip_high: float | None = Field(
        None, ge=0, le=100, description="How far a ratio may rise and still give a gradient. Left out: the loss's own"
    )
    cap: float | None = Field(None, gt=0, le=1_000, description="cispo: largest ratio. Left out: 5")
    tau: float | None = Field(
        None, gt=0, le=1_000, description="kimi_k2: how strongly the model is held near the sampler. Left out: 0.1"
    )
    correction: Literal["none", "tis", "icepop"] | None = Field(
        None,
        description="What becomes of tokens whose probability by the model is far from that by the sampler: tis cuts their "
        "weight, icepop masks them. Left out: none, because in process both agree; tis with max_staleness, where a token that "
        "became likelier would count more than twice",
    )
    kl: float = Field(
        0.0,
        ge=0,
        le=1_000,
        description="Weight of the distance from the model before this training. 0, as in most frameworks: the clip holds "
        "steps small, and no reference is needed",
    )
    nll: float = Field(
        0.0,
        ge=0,
        le=1_000,
        description="Weight of the negative log-likelihood of answers that passed, added to the loss: it keeps right answers "
        "likely where few are right (VAPO takes 0.1). 0, as in most frameworks: rewards alone",
    )
    prompts_per_step: int = Field(
        8,
        ge=1,
        le=65_536,
        description="Prompts that are answered for each step: 64 answers, 8 to each. More even out the noise of a gradient",
    )
    answers: int = Field(
        8, ge=2, le=1_024, description="Answers to each prompt, which are compared with each other; frameworks take 8 to 16"
    )
    sync_steps: int = Field(
        1, ge=1, le=1_000, description="Steps that learn from one round of answers. 1: always the newest model answers"
    )
    max_staleness: int = Field(
        0,
        ge=0,
        le=1_000,
        description="0: the model samples, then learns. Above: engines in processes of their own sample while it learns, "
        "with weights of at most so many steps before ([reinforcement.md](reinforcement.md#asynchronous)). 1 or 2 keep both "
        "busy; other frameworks go up to 8",
    )
    engines: int = Field(1, ge=1, le=64, description="max_staleness: processes that sample, each with a copy of the model")
    replacements: int = Field(
        0,
        ge=0,
        le=100,
        description="How many times as many prompts may be asked in place of those whose answers are all as good "
        "(dynamic sampling). 0: they are left out without replacement",
    )
    temperature: float = Field(
        1.0,
        gt=0,
        le=100,
        description="Temperature at which the model samples, and by which logits are divided in the loss. 1 is the model "
        "as it is",
    )
    max_new_tokens: int = Field(
        256, ge=1, le=1_000_000, description="Longest sampled answer. A round lasts as long as its longest one"
    )
    temperature_end: float | None = Field(
        None, gt=0, le=100, description="Temperature of the last step, reached linearly. Left out: temperature at every step"
    )
    max_new_tokens_start: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Longest answer of the first step; it grows linearly to max_new_tokens. Short answers first make early "
        "steps cheap. Left out: max_new_tokens at every step",
    )
    batch_size: int = Field(
        128,
        ge=1,
        le=65_536,
        description="Answers that are sampled at once, and graded before they are kept: what a kill may lose",
    )
    overlong: Literal["mask", "penalty", "none"] = Field(
        "none",
        description="Answers that max_new_tokens cuts: none learns them as graded, so that answers come to fit; mask leaves "
        "them out, where the limit says nothing of their quality; penalty lowers the grade of the last overlong_tokens "
        "before the limit",
    )
    overlong_tokens: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="penalty: tokens over which the grade falls by 1. Left out: a fifth of max_new_tokens",
    )
    passing_grade: float = Field(
        1.0,
        ge=-1e6,
        le=1e6,
        description="Grade from which an answer counts as passed, for pass rates and the choice of prompts. 1 is a verifier's",
    )
    held_out_prompts: int = Field(
        64,
        ge=0,
        le=65_536,
        description="Prompts of the validation split that are answered before, during and after the training",
    )
    held_out_answers: int = Field(4, ge=1, le=1_024, description="Answers to each of them")
    held_out_grader: GraderSettings | None = Field(
        None,
        description="Who grades held-out answers, so that a model that learns to please `grader` is seen. Left out: what "
        "the rows verify themselves with where every row does, else `grader`",
    )
    schedule: Literal["cosine", "wsd", "linear", "constant"] = Field(
        "constant", description="Learning rate after the warm-up; rewards have no end to decay towards"
    )
    overflow: Literal["drop"] = Field("drop", description="What happens to a prompt that leaves no room for an answer")

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {**TrainingSettings.PRESETS["quick"], "learning_rate": 5e-6, "epochs": 1.0},
        "balanced": {**TrainingSettings.PRESETS["balanced"], "learning_rate": 5e-6, "epochs": 2.0},
        "thorough": {**TrainingSettings.PRESETS["thorough"], "learning_rate": 1e-6, "epochs": 8.0},
    }
    """`thorough` has the rate of the frameworks for full fine-tuning over hundreds of steps, the others one for some tens."""
    COMMON: ClassVar[dict[str, Any]] = {**TuningSettings.COMMON, "warmup_share": 0.0, "most_epochs": 20.0}
    ADAPTERS_LEARN_FASTER: ClassVar[float] = 40.0
    LEAST_STEPS: ClassVar[int] = 40
    STAY_OPEN: ClassVar[dict[str, str]] = {
        **TuningSettings.STAY_OPEN,
        **dict.fromkeys(READ_BY, "each loss has its own"),
        "advantage": "each loss has its own",
        "aggregation": "each loss has its own",
        "correction": "none, or tis with max_staleness",
        "overlong_tokens": "a fifth of max_new_tokens",
        "temperature_end": "temperature",
        "max_new_tokens_start": "max_new_tokens",
        "held_out_grader": "the rows' own, or grader",
        "environment": "none",
        "agent": "none",
        "python": "that of millrace",
        "grader": "the environment or the agent",
        "drafter": "none",
        "server": "the defaults of its keys",
        "seconds": "10, of an agent 300",
    }

    @model_validator(mode="after")
    def _keys_agree(self):
        for sentence in self._contradictions():
            raise ValueError(sentence)
        return self

    def _contradictions(self) -> Iterator[str]:
        """Sentences about keys that contradict each other."""
        if sum(each is not None for each in (self.grader, self.environment, self.agent)) != 1:
            yield "`grader`, `environment` or `agent` says how good an answer is: give one of them"
        if self.grader is not None and self.python is not None:
            yield "python runs an environment or an agent, and there is a grader: leave it out"
        if self.grader is None and self.held_out_grader is not None:
            yield "held_out_grader grades single answers, and there are attempts of several turns: leave it out"
        if self.grader is None and self.overlong == "penalty":
            yield "overlong: penalty measures one answer, and an attempt of several turns has more: choose mask or none"
        for key, readers in READ_BY.items():
            if getattr(self, key) is not None and self.loss not in readers:
                yield f"{key} is given, and only {', '.join(readers)} reads it: leave {key} out, or choose such a loss"
        if self.overlong_tokens is not None and self.overlong != "penalty":
            yield f"overlong_tokens is given, and overlong is {self.overlong}: leave it out, or set overlong to penalty"
        if self.overlong_tokens is not None and self.overlong_tokens > self.max_new_tokens:
            yield f"overlong_tokens {self.overlong_tokens} is more than max_new_tokens {self.max_new_tokens}: give less"
        if self.server is not None and self.engine != "vllm":
            yield "server says how `engine: vllm` is started, and engine is another one: leave server out"
        if self.drafter is not None and self.engine != "in_process":
            yield "drafter drafts for `engine: in_process`, and engine is another one: leave drafter out"
        if self.max_new_tokens >= (self.max_length or math.inf):
            yield (
                f"max_new_tokens {self.max_new_tokens} leaves no room for a prompt in max_length {self.max_length}: raise "
                "max_length, or lower max_new_tokens"
            )
        if (self.max_new_tokens_start or 0) > self.max_new_tokens:
            yield (
                f"max_new_tokens_start {self.max_new_tokens_start} is more than max_new_tokens {self.max_new_tokens}: give less"
            )
        if self.max_staleness and self.sync_steps > 1:
            yield "sync_steps and max_staleness both say how old answers may be: leave one of them out"
        if self.max_staleness and (self.temperature_end or self.max_new_tokens_start):
            yield "engines of max_staleness sample all rounds alike: leave temperature_end and max_new_tokens_start out"
        if self.engines > 1 and not self.max_staleness:
            yield "engines sample while the model learns, and max_staleness is 0: set it, or leave engines out"
        if self.max_staleness and (self.engine != "in_process" or self.drafter is not None):
            yield "max_staleness samples in processes of its own, without server or drafter: leave engine and drafter out"
        if self.max_staleness and not self.mesh.alone:
            yield "with max_staleness one process learns: leave mesh or max_staleness out"
        if self.mesh.cp > 1:
            yield "a rollout is learnt whole, and mesh.cp splits rows: take dp_shard or tp in its place"

    def at(self, place: float) -> RftSettings:
        """The settings of a round: temperature and longest answer on a line from the first step (place 0) to the last one
        (1)."""
        begin, end = self.max_new_tokens_start or self.max_new_tokens, self.temperature_end or self.temperature
        return self.model_copy(
            update={
                "temperature": self.temperature + place * (end - self.temperature),
                "max_new_tokens": round(begin + place * (self.max_new_tokens - begin)),
            }
        )

    @property
    def prompts_a_step(self) -> int:
        return self.prompts_per_step

    @property
    def compared(self) -> Advantage:
        return self.advantage or OF_LOSS[self.loss][0]

    @property
    def mean_over(self) -> Aggregation:
        return self.aggregation or OF_LOSS[self.loss][1]

    @property
    def corrected_by(self) -> str:
        """Of CORRECTIONS, or none."""
        return self.correction or ("tis" if self.max_staleness else "none")

    @property
    def given(self) -> dict[str, float]:
        """Keywords of the loss that are set (model_ops.reinforcement.policy_loss)."""
        return {key: value for key in READ_BY if (value := getattr(self, key)) is not None}

    @property
    def graders(self) -> dict[str, GraderSettings]:
        """Graders by key."""
        both = {"grader": self.grader, "held_out_grader": self.held_out_grader}
        return {key: grader for key, grader in both.items() if grader is not None}

    @property
    def files(self) -> list[str]:
        """Files of grading functions, and of the environment or the agent; the directory of a trained drafter."""
        named = [named for named in (self.environment, self.agent) if named not in (None, TASKSETS)]
        drafter = [self.drafter] if self.drafter and self.drafter not in LOOKUP_DRAFTERS else []
        return [*self.grader_files, *(each.rpartition(":")[0] for each in named), *drafter]

    @property
    def grader_files(self) -> list[str]:
        """Files of grading functions."""
        return sorted({file for grader in self.graders.values() for file in grader.files})
