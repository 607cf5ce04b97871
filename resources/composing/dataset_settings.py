"""The recipe's `datasets.sft` settings: which rows are taken, how often, and in which split.

    DatasetSettings(mix={"gateway": 0.8, "handmade": {"rows": 500}}, limits={"handmade": {"max_repeats": 3}}, max_rows=5_000)
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from model_ops.rendering.settings import RenderingSettings
from model_ops.settings import Settings


class DatasetError(Exception):
    """The rows and settings give no dataset; the message says what to change."""


class MixedSource(BaseModel):
    """What one source or seed gives: a share of the training rows, or a number of rows. A plain number is a share."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    share: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Share of the training rows, relative to the other shares; a plain number "
        "means the same. Left out: `rows` says how many")
    rows: int | None = Field(None, ge=1, description="Number of training rows, taken before the shares are divided. Left out: "
                             "`share` says how many")

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
        found = handler.resolve_ref_schema(handler(schema))
        found["type"] = ["object", "number"]  # minimum counts for numbers, properties for objects
        found["minimum"] = 0
        return found


class SourceLimits(Settings):
    """Bounds on what one source or seed gives to the training split."""

    max_rows: int | None = Field(None, ge=0, description="Most training rows from it. Left out: no bound")
    max_share: float | None = Field(None, gt=0, le=1, description="Most of the training rows from it, as a share. Left out: no "
                                    "bound")
    max_repeats: int = Field(1, ge=1, le=1_000, description="How often one of its rows may be in the training split, where the "
                             "mix asks for more rows than it has. 1: no row is repeated")


class Mixture(Settings):
    """How much each source and seed gives to the training rows of a dataset."""

    mix: dict[str, MixedSource] = Field(
        default_factory=dict,
        description="What each source or seed gives: a share of the training rows (0.8), relative to the other shares, or a "
        "number of rows ({rows: 500}). A source that is not named is left out. Empty: all rows of every source and seed",
    )
    limits: dict[str, SourceLimits] = Field(
        default_factory=dict, description="Bounds by source or seed name: most rows, largest share, repeats")
    max_rows: int | None = Field(None, ge=1, description="Most training rows. Left out: all")
    max_synthetic_share: float | None = Field(
        None, ge=0, le=1, description="Most of the training rows from seeds with `synthetic: true`, as a share. Left out: no "
        "bound")
    strict: bool = Field(
        False, description="true: refuse a mix that asks for more rows than there are, instead of reporting it")
    balance: Literal["none", "sqrt", "uniform"] = Field(
        "sqrt", description="Where a source gives fewer rows than it has: rows of each prompt shape in proportion to the "
        "shape's size (none), to the square root of its size (sqrt), or equally (uniform)")

    @model_validator(mode="after")
    def _gives_rows(self):
        if self.mix and not any(given.share or given.rows for given in self.mix.values()):
            raise ValueError("mix holds only zeros; give at least one source or seed a share above 0")
        counted = sum(given.rows or 0 for given in self.mix.values())
        if self.max_rows is not None and counted > self.max_rows:
            raise ValueError(f"mix asks for {counted:,} rows by number, and max_rows allows {self.max_rows:,}; raise max_rows, "
                             "or give smaller numbers")
        return self


class DatasetSettings(RenderingSettings, Mixture):
    """How the rows of a supervised dataset are mixed, split and rendered."""

    validation_share: float = Field(0.05, ge=0, lt=1, description="Share of the users (or sessions) for validation")
    test_share: float = Field(
        0.1, ge=0, lt=1, description="Share of the users (or sessions) for the test split, on which no stage trains")
    split_by: Literal["user", "session"] = Field(
        "user", description="user: all sessions of a user are in one split, and so is each session without a user. session: "
        "each session on its own, for logs in which one user id stands for many people")
    stratify_by: list[Literal["prompt_shape", "language", "source"]] = Field(
        default_factory=lambda: ["prompt_shape", "language", "source"], description="Each value of these columns is a stratum. "
        "One that is large enough for a split (10 users for a share of 0.1) and has no user there by its hash lends it one, "
        "which stays. []: the hash alone decides")
    seed: int = Field(0, ge=0, lt=2**32, description="Seed of splits and samples")

    @model_validator(mode="after")
    def _possible(self):
        if self.validation_share + self.test_share >= 1:
            raise ValueError("validation_share and test_share leave nothing to train on; their sum must be below 1")
        return self


