"""The recipe's settings of datasets: `datasets.sft`, `preference`, `rl_prompts`, `calibration`, `datasets.named`, and `seeds`.
A named dataset has the held-out rows of `sft_dataset`, so what one stage trains on is never what another is measured on."""

import math
from datetime import date
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, StringConstraints, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from model_ops.files import LocalPath
from model_ops.jobs import Settings
from model_ops.rendering import RenderingSettings
from resources.composing.eval_suite import EvalSettings
from resources.sources import SourceSettings, Uri


class DatasetError(Exception):
    """The rows and settings give no dataset; the message says what to change."""


class MixedSource(BaseModel):
    """What one source or seed gives: a share of the training rows, or a number of rows. A plain number is a share."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    share: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Share of the training rows, relative to the other shares; a plain number "
        "means the same. Left out: `rows` says how many",
    )
    rows: int | None = Field(
        None, ge=1, description="Number of training rows, taken before the shares are divided. Left out: `share` says how many"
    )

    @model_validator(mode="before")
    @classmethod
    def _number_is_a_share(cls, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not 0 <= value < math.inf:  # not for NaN either
                raise ValueError(f"it holds {value:g}; give a number of at least 0")
            return {"share": value}
        if not isinstance(value, dict | cls):
            raise ValueError("give a share such as 0.8, without quotes, or a number of rows such as {rows: 500}")
        return value

    @model_validator(mode="after")
    def _one_of_both(self):
        if (self.share is None) == (self.rows is None):
            raise ValueError("give either a share such as 0.8, or a number of rows such as {rows: 500}")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        json_schema = handler.resolve_ref_schema(handler(schema))
        json_schema["type"] = ["object", "number"]  # minimum counts for numbers, properties for objects
        json_schema["minimum"] = 0
        return json_schema


class SourceLimits(Settings):
    """Bounds on what one source or seed gives to the training split."""

    max_rows: int | None = Field(None, ge=0, description="Most training rows from it. Left out: no bound")
    max_share: float | None = Field(
        None, gt=0, le=1, description="Most of the training rows from it, as a share. Left out: no bound"
    )
    max_repeats: int = Field(
        1,
        ge=1,
        le=1_000,
        description="How often one of its rows may be in the training split, where the "
        "mix asks for more rows than it has. 1: no row is repeated",
    )


class Mixture(Settings):
    """How much each source and seed gives to the training rows of a dataset."""

    mix: dict[str, MixedSource] = Field(
        default_factory=dict,
        description="What each source or seed gives: a share of the training rows (0.8), relative to the other shares, or a "
        "number of rows ({rows: 500}). A source that is not named is left out. Empty: all rows of every source and seed",
    )
    limits: dict[str, SourceLimits] = Field(
        default_factory=dict, description="Bounds by source or seed name: most rows, largest share, repeats"
    )
    max_rows: int | None = Field(None, ge=1, description="Most training rows. Left out: all")
    max_synthetic_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Most of the training rows from seeds with `synthetic: true`, as a share. Left out: no bound",
    )
    strict: bool = Field(
        False, description="true: refuse a mix that asks for more rows than there are, instead of reporting it"
    )
    balance: Literal["none", "sqrt", "uniform"] = Field(
        "sqrt",
        description="Where a source gives fewer rows than it has: rows of each prompt shape in proportion to the "
        "shape's size (none), to the square root of its size (sqrt), or equally (uniform)",
    )

    @model_validator(mode="after")
    def _gives_rows(self):
        if self.mix and not any(given.share or given.rows for given in self.mix.values()):
            raise ValueError("mix holds only zeros; give at least one source or seed a share above 0")
        counted = sum(given.rows or 0 for given in self.mix.values())
        if self.max_rows is not None and counted > self.max_rows:
            raise ValueError(
                f"mix asks for {counted:,} rows by number, and max_rows allows {self.max_rows:,}; raise max_rows, "
                "or give smaller numbers"
            )
        return self


Stratum = Literal["prompt_shape", "language", "source"]


class DatasetSettings(RenderingSettings, Mixture):
    """How the rows of a supervised dataset are mixed, split and rendered."""

    validation_share: float = Field(0.05, ge=0, lt=1, description="Share of the users (or sessions) for validation")
    test_share: float = Field(
        0.1, ge=0, lt=1, description="Share of the users (or sessions) for the test split, on which no stage trains"
    )
    split_by: Literal["user", "session"] = Field(
        "user",
        description="user: all sessions of a user are in one split, and so is each session without a user. session: "
        "each session on its own, for logs in which one user id stands for many people",
    )
    stratify_by: list[Stratum] = Field(
        default_factory=lambda: list(get_args(Stratum)),
        description="Each value of these columns is a stratum. "
        "One that is large enough for a split (10 users for a share of 0.1) and has no user there by its hash lends it one, "
        "which stays. []: the hash alone decides",
    )
    seed: int = Field(0, ge=0, lt=2**32, description="Seed of splits and samples")

    @model_validator(mode="after")
    def _possible(self):
        if self.validation_share + self.test_share >= 1:
            raise ValueError("validation_share and test_share leave nothing to train on; their sum must be below 1")
        return self


class RowFilter(Settings):
    """Which rows of traffic a dataset trains on. Seeds are chosen by `mix` alone."""

    min_quality: float | None = Field(
        None, ge=1, le=10, description="Least quality that `curation.judge` gave to a row of traffic. Left out: any"
    )
    min_difficulty: float | None = Field(
        None, ge=1, le=10, description="Least difficulty that `curation.judge` gave to a row of traffic. Left out: any"
    )
    min_feedback: float | None = Field(
        None,
        ge=-1,
        le=1,
        description="Least feedback on a row of traffic, where 1 is a thumb up; a row without feedback is "
        "left out. Left out: any",
    )
    languages: list[str] | None = Field(
        None, min_length=1, description="Languages of the rows of traffic, such as [en, de]. Left out: all"
    )
    first_day: date | None = Field(None, description="First day of the traffic that is trained on. Left out: the recipe's")
    last_day: date | None = Field(None, description="Last day of the traffic that is trained on. Left out: the recipe's")

    @model_validator(mode="after")
    def _in_order(self):
        if self.first_day and self.last_day and self.last_day < self.first_day:
            raise ValueError(f"last_day {self.last_day} is before first_day {self.first_day}; change one of them")
        return self


class NamedDataset(Mixture, RowFilter):
    """A further dataset, with a mixture and a choice of rows of its own; splits and rendering as of `datasets.sft`."""

    def as_dataset(self, sft: DatasetSettings) -> DatasetSettings:
        own = {name: getattr(self, name) for name in Mixture.model_fields}
        return sft.model_copy(update={**own, "stratify_by": []})  # what strata lend, sft_dataset has lent

    @property
    def only(self) -> RowFilter:
        return RowFilter(**{name: getattr(self, name) for name in RowFilter.model_fields})


ALL_ROWS = 2**62
"""A bound that no dataset reaches."""


def _sureness(default: float, why: str) -> float:
    return Field(default, ge=0, le=1, description=why)


class SourceConfidence(Settings):
    """How likely each source of a preference is right, from 0 to 1: `confidence` of its rows. 0 leaves the source out. The
    defaults are judgements, not measurements. Of two sources that pair a rejected answer, the surer one counts."""

    edited: float = _sureness(0.95, "The user replaced the answer by a text: nothing says better what was wanted")
    teacher: float = _sureness(0.9, "A verifier accepted one answer of a teacher and rejected the other")
    graded: float = _sureness(0.8, "Best and worst of several answers, by `curation.judge` or a verifier: one grader's opinion")
    rated: float = _sureness(0.8, "People's thumbs on two answers to one prompt; most give none, and some press the wrong one")
    ranked: float = _sureness(
        0.75, "Log lines that rank or compare answers: annotators agree on 73 % of such pairs (arXiv 2203.02155)"
    )
    regenerated: float = _sureness(0.7, "The user asked again and went on from the other answer, maybe out of curiosity")
    outcome: float = _sureness(0.6, "How a session ended, said of each of its answers: most of them did not decide it")
    strong: float = _sureness(
        0, "The teacher's answer against the logged one: only where the teacher is known to be better than what served"
    )
    thumb: float = _sureness(0.8, "A thumb on one answer (an unpaired row)")
    dissatisfied: float = _sureness(0.7, "The user's next message complains, as the judge reads it (an unpaired row)")


class PreferenceSettings(Settings):
    """Pairs of a chosen and a rejected answer to one prompt, and answers with a verdict of their own: from feedback,
    regenerated and edited answers, ranked lines, outcomes of sessions, grades, and a teacher. The splits are those of
    `datasets.sft`."""

    min_difference: float = Field(
        0.5,
        gt=0,
        description="Least difference of feedback between two answers to a prompt that makes them a pair; an answer "
        "without feedback counts as 0. Of a judge's scores, half of this as a share of the scale",
    )
    max_rows: int | None = Field(
        None, ge=1, description="Most training pairs, and most training rows with a verdict alone. Left out: all"
    )
    confidence: SourceConfidence = Field(
        default_factory=SourceConfidence, description="How sure each source is; 0 leaves it out"
    )
    propensity_clip: float | None = Field(
        None,
        ge=1,
        description="Weighs votes by 1 / the share of sessions that the gateway kept (`sample` of a key), at most this, so "
        "that keys that are sampled less count as their traffic does. Left out: every vote weighs the same",
    )
    dissatisfaction: int | None = Field(
        None,
        ge=1,
        le=5,
        description="`curation.judge` rates the user's next message from 1 (the answer is wrong, or the request is repeated) "
        "to 10 (content); up to this rating, at most 5, the answer is an unpaired row that is not wanted. 3 is a start. Left "
        "out: no reaction is rated",
    )


class RlPromptSettings(Settings):
    """Prompts with data to verify an answer: lines of reinforcement fine-tuning in the logs, and files of tasks. The splits are
    those of `datasets.sft`. Prompts that contain an item of `evals` are left out."""

    tasks: dict[str, EvalSettings] = Field(
        default_factory=dict,
        description="Files of tasks by name, in the formats of `evals`; they are for training, so none "
        "of them may be under `evals` too",
    )
    max_rows: int | None = Field(None, ge=1, description="Most training prompts. Left out: all")

    @field_validator("tasks")
    @classmethod
    def _is_asked(cls, value: dict[str, EvalSettings]) -> dict[str, EvalSettings]:
        for name, settings in value.items():
            if settings.task == "none":
                raise ValueError(f"{name} has task none, so nothing could verify an answer; choose a kind of task")
        return value


class CalibrationSettings(Settings):
    """Training rows that quantization is calibrated with, drawn evenly over the prompt shapes. None of them is held out."""

    rows: int = Field(512, ge=1, description="Number of rows")
    seed: int = Field(0, ge=0, lt=2**32, description="Seed of the sample")


class SeedSettings(SourceSettings):
    """One set of training examples: files, or a dataset of the lake."""

    uri: Uri | None = Field(  # type: ignore[assignment]
        None,
        min_length=1,
        description="File, directory, glob, file:// or any fsspec URL such as s3://, without credentials. "
        "Left out: `dataset` names the examples",
    )
    dataset: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]+/[a-z0-9_-]+$")] | None = Field(
        None, description="Dataset of the same lake whose training rows are taken, as workload/name, instead of files"
    )
    version: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")] | None = Field(
        None, description="Version of `dataset`, 12 hex digits. Left out: the current one"
    )
    synthetic: bool = Field(
        False, description="true: a model wrote these examples. Their rows say so, and max_synthetic_share bounds them"
    )
    licence: str | None = Field(None, min_length=1, description="Licence of these examples, for the dataset's card")
    tokenizer: Annotated[str, LocalPath("uri")] | None = Field(
        None,
        min_length=1,
        description="Directory of the tokenizer (or model) that made the token ids of these examples. "
        "Another vocabulary than the base model's is refused. Left out: not compared",
    )

    @model_validator(mode="after")
    def _one_place(self):
        if (self.uri is None) == (self.dataset is None):
            raise ValueError("give uri (files) or dataset (workload/name of this lake), and not both")
        if self.version is not None and self.dataset is None:
            raise ValueError("version belongs to dataset, and there is none; leave version out, or name a dataset")
        if self.dataset is not None and (self.fields is not None or self.format != "auto"):
            raise ValueError("format and fields say how files are read, and a dataset's rows are known; leave them out")
        return self
