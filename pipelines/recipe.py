"""The recipe: the contract with its users. One YAML file per workload.

Only `workload`, `base_model` and `sources` are needed; everything else has a default that works. Unknown keys are
refused, paths are relative to the recipe's own folder. `load_recipe(path)` raises RecipeError with one sentence a line,
each naming the field, what it holds, and what would be accepted.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from model_ops.specs import (
    EvaluateSettings,
    QuantizeSettings,
    SftSettings,
    SpeculatorSettings,
    StudentSettings,
    TinyBaseSettings,
)
from model_ops.training.settings import Settings
from pipelines.contract.check import placed, problems_in
from pipelines.contract.cron import checked_cron
from pipelines.contract.keys import Words
from pipelines.contract.places import settle_places
from pipelines.contract.problems import RecipeError
from pipelines.contract.rules import broken_rules
from pipelines.contract.text import read_text
from resources.composing.datasets import DatasetSettings
from resources.composing.eval_suite import EvalSettings
from resources.curating.curation import CurationSettings
from resources.reading.sources import SourceSettings
from resources.releasing.model_policy import ModelPolicy
from resources.releasing.release import ReleaseSettings
from resources.tracking import TrackingKind, missing_package

__all__ = ["Recipe", "RecipeError", "load_recipe"]

_FIRST_YEAR = 2000


def _as_date(value: Any) -> Any:
    """A date from its text. Raises ValueError for a day that no calendar has."""
    if type(value) is date:
        return value
    numbers = re.fullmatch(r"(\d{4})-(\d\d?)-(\d\d?)", value) if isinstance(value, str) else None
    if numbers is None:
        raise ValueError("a date is a year, a month and a day, such as 2026-06-01, without a time")
    try:
        day = date(*map(int, numbers.groups()))
    except ValueError as error:
        raise ValueError(f"there is no day {value}; a date is a year, a month and a day, such as 2026-06-01") from error
    if day.year < _FIRST_YEAR:
        raise ValueError(f"the year {day.year} is before {_FIRST_YEAR}; is it a slip?")
    return day


Day = Annotated[date, BeforeValidator(_as_date)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9_-]*[a-z0-9])?$", max_length=63),
                 Words("a name of a to z, 0 to 9, - and _, at most 63 of them, that begins and ends with a letter or a digit")]


class Datasets(Settings):
    sft: DatasetSettings = Field(default_factory=DatasetSettings)


class NotBuiltYet(Settings):
    """A stage that this version of millrace does not have: it can only be off."""

    enabled: Literal[False] = False


class Retrain(Settings):
    cron: str = Field("0 3 * * *", description="when new logs are read and everything that depends on them is rebuilt")
    enabled: bool = Field(False, description="start the schedule as soon as the daemon runs")

    _comes = field_validator("cron")(checked_cron)


class Automation(Settings):
    retrain: Retrain = Field(default_factory=Retrain)
    watch_logs: bool = Field(False, description="start the new-logs sensor as soon as the daemon runs")


class Recipe(Settings):
    """Everything one workload wants. See recipes/demo.yaml for one that runs anywhere."""

    workload: Name
    base_model: str = Field(min_length=1, description="a Hugging Face id, a directory, or `tiny` (built on the spot)")
    sources: dict[Name, SourceSettings] = Field(min_length=1, description="logs and feedback, read in place")
    first_day: Day | None = Field(None, description="first daily partition; open: the earliest day in the logs")
    last_day: Day | None = Field(None, description="last daily partition, for traffic that has ended; open: today")
    seeds: dict[Name, SourceSettings] = Field(default_factory=dict, description="curated or synthetic examples")
    evals: dict[Name, EvalSettings] = Field(default_factory=dict, description="suites to decontaminate against")
    tiny: TinyBaseSettings = Field(default_factory=TinyBaseSettings, description="only for base_model `tiny`")
    curation: CurationSettings = Field(default_factory=CurationSettings)
    datasets: Datasets = Field(default_factory=Datasets)
    sft: SftSettings = Field(default_factory=SftSettings)
    preference: NotBuiltYet = Field(default_factory=NotBuiltYet)
    rft: NotBuiltYet = Field(default_factory=NotBuiltYet)
    student: StudentSettings = Field(default_factory=StudentSettings)
    quantize: QuantizeSettings = Field(default_factory=QuantizeSettings)
    speculator: SpeculatorSettings = Field(default_factory=SpeculatorSettings)
    evaluation: EvaluateSettings = Field(default_factory=EvaluateSettings)
    release: ReleaseSettings = Field(default_factory=ReleaseSettings)
    automation: Automation = Field(default_factory=Automation)
    threads: int = Field(2, ge=1, description="CPU threads of a worker")
    tracking: TrackingKind = Field("none", description="also sends every training step's numbers to tensorboard (files under "
                                   "<lake>/tracking) or wandb")

    @field_validator("seeds", "evals", mode="before")
    @classmethod
    def _null_means_none(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("tracking")
    @classmethod
    def _tracker_is_installed(cls, value: TrackingKind) -> TrackingKind:
        if missing_package(value):
            raise ValueError(f"the package {value} is not installed: pip install {value}, or set tracking to none")
        return value

    @model_validator(mode="after")
    def _agrees_with_itself(self):
        if problems := list(broken_rules(self)):
            raise PydanticCustomError("broken_rules", "keys of the recipe contradict each other", {"problems": problems})
        self.evaluation.num_speculative_tokens = self.speculator.num_speculative_tokens  # what is served is measured
        self.evaluation.temperatures = sorted({*self.evaluation.temperatures, self.speculator.answers.measured_at})
        if self.speculator.enabled and self.speculator.architecture == "mtp":
            self.quantize.mtp_layer = True
        return self

    @property
    def policy(self) -> ModelPolicy:
        return ModelPolicy(self.student.enabled, self.quantize.enabled, self.speculator.enabled, self.student_drafts,
                           self._base_drafts)

    @property
    def _base_drafts(self) -> bool:
        drafter = self.speculator
        return drafter.enabled and drafter.architecture == "mtp" and drafter.resolved().mtp_layer == "base"

    @property
    def student_drafts(self) -> bool:
        drafter = self.speculator
        return drafter.enabled and drafter.architecture == "draft_model" and drafter.resolved().draft_model == "student"

    @property
    def disabled(self) -> list[str]:
        """Assets that are not in this recipe's graph."""
        return [*self.policy.disabled, *([] if self.curation.judge else ["judgements"])]

    @property
    def digest(self) -> str:
        """sha256 of the recipe with every default filled in."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def load_recipe(path: Path) -> Recipe:
    """The recipe in a YAML file, its relative paths made absolute. Raises RecipeError, which holds every problem found."""
    path = Path(path)
    text = read_text(path)
    recipe, error = None, None
    try:
        recipe = Recipe.model_validate(text.content)
    except ValidationError as raised:
        error = raised
    problems = [*text.problems, *problems_in(Recipe, text, error)]
    if recipe is not None:
        problems.extend(placed(settle_places(recipe, path.resolve().parent), text))
    if problems:
        raise RecipeError(path, problems) from error
    assert recipe is not None
    return recipe
