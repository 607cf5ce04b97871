"""Settings of graders, as a recipe's section writes them. Importing this file imports no torch.

grader: verifier                      # what each row brings to verify its answers with
grader: rewards.py:grade              # a function of a file
grader: grader.json                   # a grader in OpenAI's form
grader:                               # several, each stored for every answer
  parts:
    correct: {by: number}
    brief: {by: length, most_tokens: 200, weight: 0.2}
"""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from model_ops.completions import EndpointSettings
from model_ops.files import LocalPath
from model_ops.jobs import Settings

CHECKS = ("verifier", "number", "exact", "regex", "json_schema", "function_call", "unit_tests", "ifeval")
"""Checks of model_ops/tasks. verifier: of the kind that the row says."""
JUDGES = ("judge", "rubric", "ranking")
NAMES = (*CHECKS, "math", "length", "language", *JUDGES, "reward_model")
OPENAI = "openai"
"""Stands behind the colon after a file in OpenAI's form, where a function's name stands."""


class AnswerJudgeSettings(EndpointSettings):
    """A model that compares two answers to an item, asked twice with the answers in either order."""

    concurrency: int = Field(8, ge=1, le=256, description="Requests at a time")
    timeout_s: float = Field(60, gt=0, le=86_400, description="Seconds to wait for one reply")


class GraderPart(Settings):
    """One grader, and what its grade counts."""

    by: Annotated[str, LocalPath("function", "a function of a file, as rewards.py:grade")] = Field(
        description=f"Who grades: {', '.join(NAMES)}, a function of a file, as rewards.py:grade, or a grader in "
        "OpenAI's JSON form, as grader.json"
    )
    weight: float = Field(
        1.0, ge=-1e6, le=1e6, description="What its grade is multiplied by in a sum. Below 0: a high grade is bad"
    )
    seconds: float = Field(
        10.0,
        gt=0,
        le=3_600,
        description="Most seconds of one answer, for functions, `math`, `unit_tests` and Python of OpenAI's form",
    )
    completions: Literal["text", "messages"] | None = Field(
        None, description="functions of TRL: what a completion is. Left out: what the function's source reads"
    )
    pattern: str | None = Field(
        None, description="regex: what a right answer matches. Left out: the pattern that the row brings"
    )
    most_tokens: int = Field(
        256, ge=1, le=2**20, description="length: answers up to so many tokens get 1; it falls to 0 at twice as many"
    )
    judge: AnswerJudgeSettings | None = Field(
        None,
        description="judge: the server that compares the answers to a prompt in pairs; rubric: checks criteria; ranking: puts "
        "all answers to a prompt into an order; grader.json: is asked by score_model. Left out: none",
    )
    criteria: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, max_length=32, description="rubric: what a good answer does; the grade is the share that it meets"
    )
    language: str | None = Field(
        None,
        pattern="^[a-z]{2,3}$",
        description="language: code of the language to answer in. Left out: that of the row's column",
    )

    @field_validator("by")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if re.fullmatch(r".*\.json", value):
            return f"{value}:{OPENAI}"
        if value not in NAMES and not re.fullmatch(rf".*\.py:[^\W\d]\w*|.*\.json:{OPENAI}", value):
            raise ValueError(
                f"no grader is called so; give {', '.join(NAMES)}, a function of a file, as rewards.py:grade, or grader.json"
            )
        return value

    @model_validator(mode="after")
    def _judge_is_named(self):
        if (self.by in JUDGES) != (self.judge is not None) and not self.by.endswith(OPENAI):
            wants = "asks a model: name it beside it as" if self.by in JUDGES else "asks no model: leave out"
            raise ValueError(f"`by: {self.by}` {wants} `judge: {{base_url, model}}`")
        if (self.by == "rubric") != bool(self.criteria):
            raise ValueError("criteria belong to `by: rubric`; give both or neither")
        if self.pattern is not None and self.by not in ("regex", "verifier"):
            raise ValueError("pattern belongs to `by: regex`; leave it out, or choose that grader")
        if self.completions is not None and ".py:" not in self.by:
            raise ValueError("completions belongs to a function of a file; leave it out, or name one as rewards.py:grade")
        if self.language is not None and self.by != "language":
            raise ValueError("language belongs to `by: language`; leave it out, or choose that grader")
        return self

    @property
    def asked_judge(self) -> AnswerJudgeSettings:
        """The judge that this part asks. Raises ValueError for a part that asks none."""
        if self.judge is None:
            raise ValueError(f"`by: {self.by}` asks a model: name it beside it as `judge: {{base_url, model}}`")
        return self.judge


class GraderSettings(Settings):
    """Who grades answers. A plain text is one grader: its name, or FILE.py:FUNCTION."""

    parts: dict[str, GraderPart] = Field(
        min_length=1, description="Graders by a name of your choice, under which each grade is stored"
    )
    combine: Literal["sum", "product"] = Field(
        "sum", description="How the parts make one grade: their weighted sum, or their product (then weights do not count)"
    )

    @property
    def asks_reward_model(self) -> bool:
        return any(part.by == "reward_model" for part in self.parts.values())

    @property
    def files(self) -> list[str]:
        """Files of functions."""
        return sorted({part.by.rpartition(":")[0] for part in self.parts.values()} - {""})

    @model_validator(mode="before")
    @classmethod
    def _text_is_one_grader(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return {"parts": {OPENAI if value.endswith(".json") else value.rpartition(":")[2]: {"by": value}}}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        resolved = handler.resolve_ref_schema(handler(schema))
        resolved["type"] = ["object", "string"]
        return resolved
