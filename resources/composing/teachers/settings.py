"""Settings of a teacher: a model at an OpenAI-compatible endpoint, or one in process. Importing this file imports no torch."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from model_ops.completions import GENERATED_WITH, EndpointSettings, PriceSettings, plain_address, variable_name
from model_ops.files import LocalPath, template_files
from model_ops.jobs import ModelError, Settings
from model_ops.operations import TRAINED
from model_ops.pruning import refuse_unusable_base
from model_ops.tasks import pattern_problem

PACE_AND_COST = {
    "api_key_env", "concurrency", "timeout_s", "retries", "requests_per_minute", "tokens_per_minute", "price", "max_cost",
}  # fmt: skip
"""Settings that say how fast and for how much answers are asked for. A teacher in process does not have them."""
ASIDE = {*PACE_AND_COST, "trains", "batch_size"}
"""Settings that change no answer."""
SET_HERE = {
    "model", "messages", "tools", "temperature", "top_p", "max_tokens", "n", "stream", "logprobs", "top_logprobs",
}  # fmt: skip
"""Fields of a request that other settings say."""


class VerifySettings(Settings):
    """Scores the teacher's answers; the best is learnt, and a row whose answers are all below `least_score` is left out."""

    kind: Literal["number", "exact", "json_schema", "function_call", "regex", "judge", "verifier"] = Field(
        description="verifier: what each row of `prompts: rl_prompts` brings. "
        "number, exact: the answer's final number or its text is that of the logged answer. json_schema: JSON that "
        "the request's response_format accepts. function_call: the calls of the logged answer. regex: the answer contains a "
        "match of `pattern`. judge: quality by curation.judge"
    )
    pattern: str | None = Field(None, min_length=1, max_length=10_000, description="regex: regular expression of Python's re")
    least_score: float | None = Field(
        None, ge=0, le=10, description="Answers with a lower score are rejected. Left out: 1, or 7 of 10 with a judge"
    )
    unverifiable: Literal["keep", "drop"] | None = Field(
        None,
        description="Rows with nothing to verify: keep learns one of their answers, drop leaves them out. Left out: keep, and "
        "drop with verifier",
    )

    @model_validator(mode="after")
    def _a_pattern_for_regex(self):
        if (self.kind == "regex") != (self.pattern is not None):
            raise ValueError("kind regex needs pattern, and no other kind reads it: give both or none")
        if self.pattern is not None and (problem := pattern_problem(self.pattern)) is not None:
            raise ValueError(f"the pattern is no regular expression: {problem}")
        if self.kind != "judge" and self.least > 1:
            raise ValueError(f"least_score is {self.least:g}, and {self.kind} gives at most 1: give a score from 0 to 1")
        return self

    @property
    def keeps_unverifiable(self) -> bool:
        return (self.unverifiable or ("drop" if self.kind == "verifier" else "keep")) == "keep"

    @property
    def least(self) -> float:
        """The least score of an answer that is learnt."""
        return self.least_score if self.least_score is not None else 7.0 if self.kind == "judge" else 1.0


def _refuse_unasked(directory: Path) -> None:
    refuse_unusable_base(directory)
    if not template_files.chat_templates(directory):
        raise ModelError(
            f"{directory} has no chat template, so it cannot be asked; put a chat_template.jinja into the directory"
        )


class TeacherSettings(Settings):
    """A teacher whose answers replace the logged ones in training: at an OpenAI-compatible endpoint, or in process."""

    base_url: str | None = Field(
        None, description="Address of the API, such as http://localhost:8000/v1, without credentials. Left out: `base` answers"
    )
    model: str | None = Field(None, min_length=1, description="Name of the model at the endpoint")
    api_key_env: str | None = Field(
        None, description="Name of the environment variable that holds the API key. Left out: no key is sent"
    )
    base: (
        Annotated[
            str,
            LocalPath("model or id", f"the directory of a model, a Hub id, or `{TRAINED}`", (TRAINED,), check=_refuse_unasked),
        ]
        | None
    ) = Field(
        None,
        min_length=1,
        description="Model that answers in process, instead of an endpoint: a directory, quantized or not, "
        "or a Hugging Face id; or `sft`, the fine-tuned model, whose answers then train the student",
    )
    prompts: Literal["sft_dataset", "rl_prompts"] = Field(
        "sft_dataset",
        description="What is answered: conversations, or the prompts of `datasets.rl_prompts`, of which the best right answer "
        "is learnt (rejection sampling, with `verify: {kind: verifier}`). Held-out rows are those of sft_dataset",
    )
    licence: str = Field(
        min_length=1,
        max_length=200,
        description="Licence or terms under which the teacher's answers may be trained on, as the release's report shows it",
    )
    logprobs: int | None = Field(
        None,
        ge=1,
        le=256,
        description="Log-probabilities of this many likeliest tokens at each token of an answer, asked for "
        "as logprobs and top_logprobs, for `student: {teacher: answers}`. OpenAI gives at most 20, vLLM its --max-logprobs. "
        "Left out: text only",
    )
    trains: Literal["sft", "student", "both"] = Field(
        "both", description="Which stages learn the teacher's answers instead of the logged ones"
    )
    max_rows: int | None = Field(
        None, ge=1, description="Most training rows to ask for, drawn by hash; the others are left out. Left out: all"
    )
    temperature: float = Field(0.7, ge=0, le=2, description="Temperature of the answers")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus of the answers")
    max_tokens: int = Field(2_048, ge=1, le=2**20, description="Most tokens of an answer; a cut answer is not used")
    request: dict[str, Any] = Field(default_factory=dict, description="Other fields of the request, sent as they are")
    answers: int = Field(1, ge=1, le=64, description="Answers that are asked for each prompt, each in a request of its own")
    verify: VerifySettings | None = Field(
        None, description="Score of the answers: the best is learnt, wrong ones are rejected. Left out: nothing is scored"
    )
    seed: int = Field(
        0, ge=0, lt=2**32, description="Seed of the choice among equally good answers, and of the answers of a model in process"
    )
    batch_size: int = Field(64, ge=1, le=65_536, description="base: answers that are decoded together")
    requests_per_minute: float | None = Field(None, gt=0, le=1e6, description="Rate limit. Left out: none")
    tokens_per_minute: float | None = Field(
        None, gt=0, le=1e9, description="Rate limit of prompt and answer tokens together. Left out: none"
    )
    price: PriceSettings | None = Field(None, description="Prices, to count cost with. Left out: cost is not counted")
    max_cost: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="Most that the answers may cost, those of earlier runs for the same rows included. "
        "Asking stops before it is passed. Left out: no limit",
    )
    most_failed: float = Field(
        0.1, ge=0, le=1, description="Largest share of rows without a usable answer; with more the stage ends"
    )
    concurrency: int = Field(16, ge=1, le=1024, description="Requests at a time")
    timeout_s: float = Field(300, gt=0, le=86_400, description="Seconds to wait for one answer")
    retries: int = Field(6, ge=0, le=20, description="How often a request that met a busy or failing server is repeated")

    _variable = field_validator("api_key_env")(variable_name)

    @field_validator("base_url")
    @classmethod
    def _plain_address(cls, value: str | None) -> str | None:
        return value if value is None else plain_address(value)

    @model_validator(mode="after")
    def _one_who_answers(self):
        if self.base is None:
            missing = [name for name in ("base_url", "model") if getattr(self, name) is None]
            if missing:
                raise ValueError(
                    f"nobody answers, since {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} "
                    "missing: give base_url and model of an endpoint, or base, the directory of a model"
                )
            if self._differs("batch_size"):
                raise ValueError(
                    "batch_size is for a teacher in process, and an endpoint makes its own batches: leave it out, "
                    "or set concurrency"
                )
            return self
        if self.logprobs is not None:
            raise ValueError(
                "logprobs and base are both given, and log-probabilities come from endpoints: leave logprobs out, "
                "or distil from the model in the graph (student.teacher: online or cache)"
            )
        if self.base_url is not None:
            raise ValueError("base_url and base are both given, and one teacher answers: leave one of them out")
        for name in ("model", *sorted(PACE_AND_COST)):
            if self._differs(name):
                raise ValueError(
                    f"{name} and base are both given, and {name} is for a teacher at an endpoint: leave one of them out"
                )
        strange = self.request.keys() - set(GENERATED_WITH)
        if strange:
            raise ValueError(
                f"request holds {min(strange)}, which the built-in generator does not know; it knows "
                f"{', '.join(GENERATED_WITH)}: take it out, or serve the model and name its base_url"
            )
        if self.base == TRAINED and self.trains != "student":
            raise ValueError(
                f"base is {TRAINED}, the fine-tuned model, and trains is {self.trains}, which it cannot teach "
                "before it is made: set trains to student"
            )
        return self

    def _differs(self, name: str) -> bool:
        return getattr(self, name) != type(self).model_fields[name].get_default()

    @model_validator(mode="after")
    def _a_limit_needs_prices(self):
        if self.max_cost is not None and self.price is None:
            raise ValueError("max_cost is set and price is not, so no cost can be counted: give price.input and price.output")
        if self.answers > 1 and self.temperature == 0:
            raise ValueError(
                f"answers is {self.answers} and temperature is 0, so all would be alike: raise temperature, or "
                "leave answers out"
            )
        kind = self.verify.kind if self.verify else "left out"
        if self.prompts == "rl_prompts" and kind not in ("verifier", "regex", "judge"):
            raise ValueError(
                f"prompts is rl_prompts, whose rows have no logged answer, and verify.kind is {kind}: set it to verifier, "
                "regex or judge"
            )
        if self.prompts != "rl_prompts" and kind == "verifier":
            raise ValueError(
                "verify.kind is verifier, which only rows of rl_prompts bring: set prompts to rl_prompts, or choose another "
                "kind"
            )
        if self.answers > 1 and self.verify is None:
            raise ValueError(f"answers is {self.answers} and nothing chooses among them: give verify, or leave answers out")
        taken = SET_HERE & self.request.keys()
        if taken:
            raise ValueError(f"request holds {min(taken)}, which millrace sets itself: take it out of request")
        return self

    @property
    def endpoint(self) -> EndpointSettings:
        return EndpointSettings(**{name: getattr(self, name) for name in EndpointSettings.model_fields})

    @property
    def name(self) -> str:
        """The teacher's name in records: of a directory its last part."""
        base = Path(self.base or "")
        return self.model or (base.name if base.is_absolute() else str(base))

    def teaches(self, section: str) -> bool:
        """Whether a recipe's section learns its answers."""
        return self.trains in ("both", section)

    @property
    def judged(self) -> bool:
        return self.verify is not None and self.verify.kind == "judge"

    @property
    def sampling(self) -> dict[str, Any]:
        logs = {} if self.logprobs is None else {"logprobs": True, "top_logprobs": self.logprobs}
        return {**self.request, "temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens, **logs}

    def counted(self) -> dict[str, Any]:
        """The settings that are part of the dataset's version."""
        return self.model_dump(mode="json", exclude=ASIDE)
