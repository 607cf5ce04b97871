"""The recipe: the contract with its users. One YAML file per workload.

Only `workload`, `base_model` and `sources` are needed; everything else has a default that works. Unknown keys are
refused, paths are relative to the recipe's own folder. `load_recipe(path)` raises RecipeError with one sentence a line,
each naming the field, what it holds, and what would be accepted.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import Field, StringConstraints, ValidationError, field_validator, model_validator

from model_ops.specs import (
    EvaluateSettings,
    QuantizeSettings,
    SftSettings,
    SpeculatorSettings,
    StudentSettings,
    TinyBaseSettings,
)
from model_ops.training.settings import Settings
from resources.composing.datasets import DatasetSettings
from resources.composing.eval_suite import EvalSettings
from resources.curating.curation import CurationSettings
from resources.reading.sources import SourceSettings
from resources.releasing.model_policy import ModelPolicy
from resources.releasing.release import ReleaseSettings
from resources.tracking import TrackingKind, missing_package

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9_-]*[a-z0-9])?$", max_length=63)]


class RecipeError(Exception):
    """The recipe cannot be used; the message names each field and what would be accepted."""


class Datasets(Settings):
    sft: DatasetSettings = Field(default_factory=DatasetSettings)


class NotBuiltYet(Settings):
    """A stage that this version of millrace does not have: it can only be off."""

    enabled: Literal[False] = False


class Retrain(Settings):
    cron: str = Field("0 3 * * *", description="when new logs are read and everything that depends on them is rebuilt")
    enabled: bool = Field(False, description="start the schedule as soon as the daemon runs")

    @field_validator("cron")
    @classmethod
    def _five_fields(cls, value: str) -> str:
        if len(value.split()) != 5 or not re.fullmatch(r"[\d\s*/,\-A-Za-z]+", value):
            raise ValueError('a cron schedule has five fields, such as "0 3 * * 1"')
        return value


class Automation(Settings):
    retrain: Retrain = Field(default_factory=Retrain)
    watch_logs: bool = Field(False, description="start the new-logs sensor as soon as the daemon runs")


class Recipe(Settings):
    """Everything one workload wants. See recipes/demo.yaml for one that runs anywhere."""

    workload: Name
    base_model: str = Field(min_length=1, description="a Hugging Face id, a directory, or `tiny` (built on the spot)")
    sources: dict[Name, SourceSettings] = Field(min_length=1, description="logs and feedback, read in place")
    first_day: date | None = Field(None, description="first daily partition; open: the earliest day in the logs")
    last_day: date | None = Field(None, description="last daily partition, for traffic that has ended; open: today")
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

    @model_validator(mode="after")
    def _measured_as_served(self):
        served, measured = self.speculator.num_speculative_tokens, self.evaluation.num_speculative_tokens
        if "num_speculative_tokens" in self.evaluation.model_fields_set and served != measured:
            raise ValueError(f"evaluation.num_speculative_tokens is {measured} and speculator.num_speculative_tokens {served}: "
                             "what is measured must be what is served; leave the first out")
        self.evaluation.num_speculative_tokens = served
        temperatures = {*self.evaluation.temperatures, self.speculator.answers.measured_at}
        self.evaluation.temperatures = sorted(temperatures)
        return self

    @model_validator(mode="after")
    def _a_student_to_draft_with(self):
        if self._student_drafts and not self.student.enabled:
            raise ValueError("speculator.architecture is draft_model, which begins from the student, and student.enabled is "
                             "false: enable the student, or name a directory in speculator.draft_model")
        if self.speculator.enabled and self.speculator.architecture == "mtp" and self.base_model == "tiny":
            raise ValueError("speculator.architecture is mtp, which trains the base model's own multi-token-prediction layer, "
                             "and base_model tiny has none: take eagle3, or a base that has one")
        return self

    @model_validator(mode="after")
    def _quantized_beside_a_layer_that_is_not(self):
        if self.speculator.enabled and self.speculator.architecture == "mtp":
            if "mtp_layer" in self.quantize.model_fields_set and not self.quantize.mtp_layer:
                raise ValueError("speculator.architecture is mtp and quantize.mtp_layer false: vLLM would take the layer's "
                                 "floats for int8 and draft badly; leave quantize.mtp_layer out")
            self.quantize.mtp_layer = True
        return self

    @model_validator(mode="after")
    def _a_share_of_something(self):
        if self.speculator.previous_share is not None and self.speculator.continue_from is None:
            raise ValueError("speculator.previous_share is set and nothing is continued: set speculator.continue_from, or "
                             "leave it out")
        return self

    @model_validator(mode="after")
    def _what_follows_takes_whole_weights(self):
        if self.sft.lora is not None and not self.sft.lora.merge:
            raise ValueError("sft.lora.merge is false, but student, quantization, drafter and endpoint take a whole model: "
                             "leave it true; the adapter is kept in adapter/ beside the merged weights")
        return self

    @field_validator("tracking")
    @classmethod
    def _tracker_is_installed(cls, value: TrackingKind) -> TrackingKind:
        if missing_package(value):
            raise ValueError(f"the package {value} is not installed: pip install {value}, or set tracking to none")
        return value

    @model_validator(mode="after")
    def _mix_names_sources(self):
        unknown = set(self.datasets.sft.mix) - set(self.sources) - set(self.seeds)
        if unknown:
            raise ValueError(f"datasets.sft.mix names {', '.join(sorted(unknown))}, which is no source and no seed; "
                             f"there are {', '.join([*self.sources, *self.seeds])}")
        return self

    @model_validator(mode="after")
    def _days_in_order(self):
        if self.first_day and self.last_day and self.last_day < self.first_day:
            raise ValueError(f"last_day {self.last_day} is before first_day {self.first_day}")
        return self

    @property
    def policy(self) -> ModelPolicy:
        return ModelPolicy(self.student.enabled, self.quantize.enabled, self.speculator.enabled, self._student_drafts,
                           self._base_drafts)

    @property
    def _base_drafts(self) -> bool:
        drafter = self.speculator
        return drafter.enabled and drafter.architecture == "mtp" and drafter.resolved().mtp_layer == "base"

    @property
    def _student_drafts(self) -> bool:
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
    """The recipe in a YAML file, its relative paths made absolute. Raises RecipeError."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecipeError(f"no recipe at {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} cannot be read as text: {error}") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{path} holds no recipe: a mapping with workload, base_model and sources is expected")
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        raise RecipeError("\n".join(f"{path}: {_sentence(problem)}" for problem in error.errors())) from error
    home = path.resolve().parent
    for inputs in (recipe.sources, recipe.seeds, recipe.evals):
        for settings in inputs.values():
            settings.uri = _absolute(settings.uri, home)
    semantic = recipe.curation.semantic_duplicates
    if semantic.model:
        semantic.model = _absolute(semantic.model, home)
        if semantic.enabled and not Path(semantic.model).is_dir():
            raise RecipeError(f"{path}: curation.semantic_duplicates.model: there is no directory {semantic.model}")
    for field, word, what in (("continue_from", "last", "a drafter"), ("draft_model", "student", "a small language model"),
                              ("mtp_layer", "base", "a model with a multi-token-prediction layer")):
        given = getattr(recipe.speculator, field)
        if given not in (None, word):
            place = _absolute(given, home)
            setattr(recipe.speculator, field, place)
            if not Path(place).is_dir():
                raise RecipeError(f"{path}: speculator.{field}: there is no directory {place}; give that of {what}, or "
                                  f"`{word}`")
    local_model = home / recipe.base_model
    if recipe.base_model != "tiny" and (recipe.base_model.startswith((".", "/", "~")) or local_model.is_dir()):
        recipe.base_model = str((home / Path(recipe.base_model).expanduser()).resolve())
        if not Path(recipe.base_model).is_dir():
            raise RecipeError(f"{path}: base_model: there is no directory {recipe.base_model}")
    return recipe


def _absolute(uri: str, home: Path) -> str:
    if "://" in uri:
        return uri
    return str(home / Path(uri).expanduser())


def _sentence(problem: dict[str, Any]) -> str:
    """One pydantic problem in words: the field, what it holds, what would be accepted."""
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = _fields_beside(problem["loc"])
        meant = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
        if meant:
            return f"{where}: there is no such key; did you mean {meant[0]}?"
        return f"{where}: there is no such key" + (f"; known here: {', '.join(known)}" if known else "")
    if problem["type"] == "missing":
        return f"{where}: is missing; every recipe needs it"
    if problem["type"] == "credentials":
        return f"{where}: {problem['msg']}"
    held = problem.get("input")
    shown = f" (it holds {held!r})" if isinstance(held, str | int | float | bool) or held is None else ""
    return f"{where}: {problem['msg'].removeprefix('Value error, ')}{shown}"


def _fields_beside(location: tuple[Any, ...]) -> list[str]:
    """The keys a person could have meant at `location`: those of the settings that refused its last part."""
    model: Any = Recipe
    for part in location[:-1]:
        if part in getattr(model, "model_fields", {}):
            model = model.model_fields[part].annotation
            model = next((kind for kind in get_args(model) if hasattr(kind, "model_fields")), model)  # X | None
        elif get_origin(model) is dict:
            model = get_args(model)[1]
        else:
            return []
    return sorted(getattr(model, "model_fields", {}))
