"""The fields of a recipe's sections with types, bounds and descriptions; `Recipe` adds the rules between keys."""

import hashlib
import json
import re
from datetime import date
from operator import attrgetter
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints, field_validator

from model_ops.evaluation import EvaluationSettings
from model_ops.files import LocalPath
from model_ops.graders import GraderSettings
from model_ops.jobs import Settings
from model_ops.models import gguf_directory
from model_ops.operations import (
    TRAINED,
    MergeSettings,
    PreferenceTuningSettings,
    QuantizeSettings,
    RewardModelSettings,
    SecondSftSettings,
    SftSettings,
    StudentSettings,
    TinyBaseSettings,
)
from model_ops.reinforcement import RftSettings
from model_ops.speculators import ARCHITECTURES, AnySpeculatorSettings, Eagle3Settings
from model_ops.training import TrainingSettings
from pipelines.contract.base_choice import TINY
from pipelines.contract.keys import Words
from resources.composing import (
    CalibrationSettings,
    DatasetSettings,
    EvalSettings,
    NamedDataset,
    PreferenceSettings,
    RlPromptSettings,
    SeedSettings,
    TeacherSettings,
)
from resources.curating import CurationSettings
from resources.deciding import DecideSettings, RecipeFacts
from resources.drifting import DriftSettings
from resources.erasing import RetentionSettings
from resources.monitoring import AlertSettings
from resources.releases import ReleaseSettings
from resources.sources import SourceSettings
from resources.stages import STAGES, ModelPolicy, stage, trained_sections
from resources.workshop import TrackingKind, missing_package

EXAMPLE = '"0 3 * * 1" is every Monday at 3:00'
FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of the month", 1, 31), ("month", 1, 12), ("day of the week", 0, 7))


def checked_cron(schedule: str) -> str:
    """Returns the schedule. Raises ValueError for one that is malformed or never matches."""
    fields = schedule.split()
    if len(fields) != len(FIELDS) or not re.fullmatch(r"[\w*/,?#-]+", "".join(fields), re.ASCII):
        raise ValueError(f"a cron schedule has five fields (minute, hour, day, month, day of the week); {EXAMPLE}")
    for text, (name, least, most) in zip(fields, FIELDS, strict=True):
        for number in re.findall(r"(?<![/\w#])\d+", text):
            if not least <= int(number) <= most:
                raise ValueError(f"the {name} of a cron schedule is {least} to {most}, not {int(number)}; {EXAMPLE}")
    if not _ever_comes(schedule):
        raise ValueError(f"no time matches this cron schedule; {EXAMPLE}")
    return schedule


def _ever_comes(schedule: str) -> bool:
    import dagster as dg  # takes half a second, so only for recipes that set a schedule

    try:
        dg.ScheduleDefinition(job_name="any", cron_schedule=schedule)
    except Exception:  # its parser raises errors of any type
        return False
    return True


_FIRST_YEAR = 2000

TRAINED_STAGES = {each.name: section for section, each in trained_sections().items()}
"""Stages that train -> their section."""


def _as_date(value: Any) -> Any:
    """A date from its text. Raises ValueError for a day that does not exist."""
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
        raise ValueError(f"the year {day.year} is before {_FIRST_YEAR}; is it a typing error?")
    return day


Day = Annotated[date, BeforeValidator(_as_date)]
Name = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9]([a-z0-9_-]*[a-z0-9])?$", max_length=63),
    Words("a name of a to z, 0 to 9, - and _, at most 63 of them, that begins and ends with a letter or a digit"),
]


DatasetName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$", max_length=40),
    Words("a name of a to z, 0 to 9 and single _, at most 40 of them, that begins with a letter"),
]


class Datasets(Settings):
    """The datasets that are built from curated rows."""

    sft: DatasetSettings = Field(default_factory=DatasetSettings, description="Dataset of supervised fine-tuning")
    preference: PreferenceSettings | None = Field(
        None, description="Pairs of a chosen and a rejected answer. Left out: not made"
    )
    rl_prompts: RlPromptSettings | None = Field(None, description="Prompts with data to verify an answer. Left out: not made")
    calibration: CalibrationSettings | None = Field(
        None, description="Rows that quantization is calibrated with. Left out: rows of the dataset of supervised fine-tuning"
    )
    named: dict[DatasetName, NamedDataset] = Field(
        default_factory=dict,
        description="Further datasets of conversations by name, which stages of training can name "
        "(`sft.dataset`). Left out: none",
    )


class Retrain(Settings):
    """The schedule on which new logs are read and everything that depends on them is rebuilt."""

    cron: Annotated[str, Words('a cron schedule, such as "0 3 * * 1"')] = Field(
        "0 3 * * *", description="Cron schedule of five fields: minute, hour, day, month, day of the week"
    )
    enabled: bool = Field(False, description="true: the schedule runs as soon as the Dagster daemon does")

    _comes = field_validator("cron")(checked_cron)


class Automation(Settings):
    """What runs automatically while the Dagster daemon runs."""

    retrain: Retrain = Field(default_factory=Retrain, description="Schedule of retraining")
    watch_logs: bool = Field(False, description="true: a sensor reads new logs as soon as the Dagster daemon runs")
    decide: DecideSettings = Field(
        default_factory=DecideSettings, description="What is retrained by itself, when, and within which budget"
    )


class RecipeFields(Settings):
    """The keys of a recipe, without the rules between them."""

    workload: Name = Field(description="Name of the workload, in asset keys and in the lake")
    base_model: Annotated[
        str,
        Words("a Hugging Face id, a directory, a GGUF file, or tiny"),
        LocalPath(
            "model or id",
            "a model's directory, an id such as Qwen/Qwen3-0.6B, a GGUF file, or `tiny`",
            (TINY,),
            directory_of=gguf_directory,
        ),
    ] = Field(
        min_length=1,
        description="Model to start from: a Hugging Face id, a directory of a model or of a PEFT adapter (merged into the "
        "model that it names), a GGUF file of a Llama or Qwen (read into bfloat16), or `tiny` (a toy)",
    )
    base_revision: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        pattern=r"^[\w][\w./+-]*$",
        description="Of a base_model on the Hugging Face Hub: its branch, tag or commit. Left out: the default branch",
    )
    sources: dict[Name, SourceSettings] = Field(min_length=1, description="Logs and feedback by name, read in place")
    first_day: Day | None = Field(None, description="First day of traffic. Left out: the earliest day in the logs")
    last_day: Day | None = Field(None, description="Last day of traffic that has ended. Left out: today")
    seeds: dict[Name, SeedSettings] = Field(
        default_factory=dict,
        description="Curated or synthetic training examples by name: files, or datasets of the lake",
        json_schema_extra={"type": ["object", "null"]},
    )
    evals: dict[Name, EvalSettings] = Field(
        default_factory=dict,
        description="Evaluation suites by name: kept out of the training rows, and asked",
        json_schema_extra={"type": ["object", "null"]},
    )
    tiny: TinyBaseSettings = Field(
        default_factory=TinyBaseSettings, description="Size and training of the base model, where base_model is `tiny`"
    )
    curation: CurationSettings = Field(default_factory=CurationSettings, description="Which rows are kept, and in what form")
    drift: DriftSettings = Field(default_factory=DriftSettings, description="Traffic compared with a reference window")
    datasets: Datasets = Field(default_factory=Datasets, description="How rows are sampled and split")
    sft: SftSettings = Field(default_factory=SftSettings, description="Supervised fine-tuning of the base model")
    second_sft: SecondSftSettings | None = Field(
        None, description="Supervised fine-tuning of the fine-tuned model on a later dataset. Left out: one stage only"
    )
    preference: PreferenceTuningSettings | None = Field(
        None, description="Training on what users prefer, after fine-tuning. Left out: none"
    )
    rft: RftSettings | None = Field(
        None, description="Reinforcement fine-tuning on rewards, after fine-tuning and preferences. Left out: none"
    )
    reward_model: RewardModelSettings | None = Field(
        None, description="Training of a model that scores answers, on pairs of answers. Left out: none"
    )
    merge: MergeSettings | None = Field(
        None, description="Merge of the fine-tuned model with other models of its shape. Left out: nothing is merged"
    )
    teacher: TeacherSettings | None = Field(
        None,
        description="A model, at an endpoint or in process, whose answers are learnt instead of the logged ones. Left "
        "out: none",
    )
    student: StudentSettings = Field(default_factory=StudentSettings, description="Distillation into a shallower model")
    quantize: QuantizeSettings = Field(default_factory=QuantizeSettings, description="Quantization of the model that is served")
    speculator: AnySpeculatorSettings = Field(
        default_factory=Eagle3Settings, description="Draft model for speculative decoding"
    )
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings, description="Measurements that the gates use")
    release: ReleaseSettings = Field(default_factory=ReleaseSettings, description="Gates and approval")
    automation: Automation = Field(default_factory=Automation, description="Schedule and sensor")
    alerts: AlertSettings | None = Field(
        None, description="What a person is told by webhook, Slack or mail while the Dagster daemon runs. Left out: nothing"
    )
    retention: RetentionSettings | None = Field(
        None, description="For how many days the lake keeps rows, versions and old files. Left out: for ever"
    )
    threads: int = Field(2, ge=1, le=1_024, description="CPU threads of a worker")
    tracking: TrackingKind = Field(
        "none",
        description="Also send the numbers of every training step to tensorboard (files under <lake>/tracking), wandb "
        "or mlflow, which their own environment variables configure",
    )

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

    @property
    def trained(self) -> dict[str, TrainingSettings]:
        """Sections whose stages train in this recipe -> their settings, in order of execution."""
        sections = {name: getattr(self, name) for name in type(self).model_fields}
        return {
            name: settings
            for name, settings in sections.items()
            if isinstance(settings, TrainingSettings)
            and getattr(settings, "enabled", True)
            and (name != "tiny" or self.base_model == "tiny")
        }

    @property
    def policy(self) -> ModelPolicy:
        """The recipe's models, and which model each starts from."""
        switches = {line.switch for line in STAGES if line.switch}
        off = frozenset(name for name in switches if not self._is_on(name))
        taught = frozenset(
            stage.name for stage in STAGES if stage.taught and self.teacher and self.teacher.teaches(stage.section)
        )
        given = {name: getattr(getattr(self, section), "dataset", None) for name, section in TRAINED_STAGES.items()}
        named = {name: dataset for name, dataset in given.items() if dataset is not None}
        if self.preference and self.preference.on_policy:
            named["preference_model"] = self.preference.on_policy.prompts
        if self.teacher and self.teacher.prompts == "rl_prompts":
            named["teacher_answers"] = "rl_prompts"
        rowless = frozenset(
            line.name for line in STAGES if line.switch and not getattr(attrgetter(line.switch)(self), "reads_rows", True)
        )
        return ModelPolicy(
            off,
            self.drafter_from,
            taught,
            self.teacher is not None and self.teacher.base == TRAINED,
            named,
            rowless,
            self._ask_reward_model,
        )

    @property
    def graders(self) -> dict[str, GraderSettings]:
        """Graders of sampled answers, by their keys."""
        sampling = self.preference and self.preference.on_policy
        graders = {f"rft.{key}": grader for key, grader in self.rft.graders.items()} if self.rft else {}
        return ({"preference.on_policy.grader": sampling.grader} if sampling else {}) | graders

    @property
    def _ask_reward_model(self) -> frozenset[str]:
        asking = {key.partition(".")[0] for key, grader in self.graders.items() if grader.asks_reward_model}
        return frozenset(name for name, section in TRAINED_STAGES.items() if section in asking)

    def _is_on(self, switch: str) -> bool:
        """Whether a section is enabled; a section without the key `enabled` is on if it is given."""
        section = attrgetter(switch)(self)
        return getattr(section, "enabled", section is not None)

    @property
    def drafter_from(self) -> str | None:
        """The stage whose model the drafter begins from, besides its target; None if it begins untrained or from a
        directory."""
        start = ARCHITECTURES[self.speculator.architecture].starts_from
        if not self.speculator.enabled or start is None:
            return None
        begins = start.named_in(self.speculator)
        return next((name for name in stage("speculator").may_start_from if stage(name).role == begins), None)

    @property
    def facts(self) -> RecipeFacts:
        """What resources/deciding, which knows no recipe, needs to know of this one."""
        retrain = self.automation.retrain
        return RecipeFacts(
            self.workload,
            self.policy,
            retrain.cron if retrain.enabled else "",
            self.speculator.architecture,
            list(self.datasets.named),
            self.evaluation.prompts,
            self.release.enabled,
            as_adapter=self.release.enabled and self.release.form == "adapter",
            decide=self.automation.decide,
        )

    @property
    def disabled(self) -> list[str]:
        """Assets that are not in this recipe's graph."""
        return self.policy.disabled

    @property
    def digest(self) -> str:
        """sha256 of the recipe with all defaults."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()
