"""The table of the graph's stages: name, operation, role, the recipe key that switches it off.

    stage("student_model").switch              # "student": the recipe's section that switches the stage off
    model_chain()                              # stages from base to served model, each starting from the one before

Everything that has to know which stages there are reads this table: the graph, the policy lineage, the evaluation, the
release's report, `millrace status`, `plan`, `sweep` and the predicted time of a run. A new stage is one line here and one file
of the same name in assets/. A new model between two others is one line between their lines: the next model starts from it.

An asset names in `deps` whatever it may read; the rule `reads` of its line says what it reads in one recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["outside", "table", "digest", "dataset", "model", "release", "endpoint"]
Group = Literal["traffic", "datasets", "models", "drafter", "release"]


class Choices(Protocol):
    """What a rule may ask about a recipe; ModelPolicy (model_policy.py) answers."""

    @property
    def disabled(self) -> Collection[str]: ...
    @property
    def drafter_from(self) -> str | None: ...
    @property
    def taught_by_itself(self) -> bool: ...
    @property
    def rowless(self) -> Collection[str]: ...
    @property
    def graded_by_reward_model(self) -> Collection[str]: ...
    @property
    def named_datasets(self) -> Collection[str]: ...
    def source_of(self, name: str) -> str: ...
    def rows_of(self, name: str) -> str: ...


Rule = Callable[[Choices, "Stage", str], tuple[str, ...]]
"""What a stage reads in place of one of its asset's `deps`."""


def nearest(recipe: Choices, reader: Stage, dep: str) -> tuple[str, ...]:
    """The dependency, if the recipe makes it; in place of a model that it does not make, the nearest one before."""
    models = [found.name for found in model_chain()]
    if reader.name in models[1:] and dep == parent_of(reader.name):
        return (recipe.source_of(reader.name),)
    if dep in models:
        return (recipe.source_of(dep) if dep in recipe.disabled else dep,)
    unread = reader.name in recipe.rowless and stage(dep).group == "datasets"
    return () if unread or dep in recipe.disabled else (dep,)


def rows_it_learns(recipe: Choices, reader: Stage, dep: str) -> tuple[str, ...]:
    """Logged answers, with the token ids that were served; or a dataset of `datasets.named`; or a teacher's answers alone."""
    rows = recipe.rows_of(reader.name)
    if dep in (("sft_dataset", "served_answers") if rows == "teacher_answers" else ("teacher_answers",)):
        return ()
    return (rows,) if dep == "sft_dataset" else nearest(recipe, reader, dep)


def rows_of_every_stage(recipe: Choices, reader: Stage, dep: str) -> tuple[str, ...]:
    """`sft_dataset`, and each dataset of `datasets.named` that a stage learns."""
    return ("sft_dataset", *recipe.named_datasets) if dep == "sft_dataset" else nearest(recipe, reader, dep)


def rows_it_calibrates_with(recipe: Choices, reader: Stage, dep: str) -> tuple[str, ...]:
    """`calibration_dataset` where the recipe makes it, `sft_dataset` otherwise."""
    other = dep == "sft_dataset" and "calibration_dataset" not in recipe.disabled
    return () if other else nearest(recipe, reader, dep)


def model_that_it_asks(recipe: Choices, reader: Stage, dep: str) -> tuple[str, ...]:
    """The model that the student starts from, where it is the teacher; no model for a teacher from outside. `rl_prompts` only
    where the teacher answers them."""
    if dep == "rl_prompts":
        return (dep,) if recipe.rows_of(reader.name) == dep else ()
    if dep == parent_of("student_model"):
        return (recipe.source_of("student_model"),) if recipe.taught_by_itself else ()
    return nearest(recipe, reader, dep)


def models_it_merges(recipe: Choices, reader: Stage, dep: str) -> tuple[str, ...]:
    """Beside the model of the stage before, those that the trainings on rewards and on preferences began from, where there are
    such trainings."""
    for trained in ("preference_model", "rft_model"):
        if dep == parent_of(trained):
            return () if trained in recipe.disabled else (recipe.source_of(trained),)
    return nearest(recipe, reader, dep)


def rows_or_prompts(recipe: Choices, reader: Stage, dep: str) -> tuple[str, ...]:
    """`rl_prompts` only where the model answers them; `reward_model` only where it grades these answers."""
    if dep == "reward_model":
        return (dep,) if reader.name in recipe.graded_by_reward_model else ()
    return () if dep == "rl_prompts" and recipe.rows_of(reader.name) != dep else nearest(recipe, reader, dep)


def chosen_start(recipe: Choices, reader: Stage, dep: str) -> tuple[str, ...]:
    """Of the models that a drafter may start from, the one that the recipe chooses."""
    if dep in reader.may_start_from:
        return (dep,) if dep == recipe.drafter_from else ()
    return nearest(recipe, reader, dep)


def what_it_measures(recipe: Choices, reader: Stage, dep: str) -> tuple[str, ...]:
    """Pairs and prompts only where a model learnt them."""
    learner = {"preference_dataset": "preference_model", "rl_prompts": "rft_model"}.get(dep)
    return () if learner in recipe.disabled else nearest(recipe, reader, dep)


@dataclass(frozen=True)
class Stage:
    """One step of the graph. An empty text means: none."""

    name: str
    """The step, its asset and, unless `module` says otherwise, its file in assets/."""
    kind: Kind
    """What it makes. `outside`: nothing; it observes files that others write. `digest`: only its data version."""
    group: Group
    """Its group in the graph. The models of group `models` are in order from base to served model."""
    operation: str = ""
    """`op` in the artefact's manifest; for a worker's stage, the operation that it runs. (An imported base model has
    `import_base`.)"""
    role: str = ""
    """Name of its model in other jobs and in the evaluation report."""
    takes_model_as: str = ""
    """The role under which its job takes the model that it starts from."""
    section: str = ""
    """The recipe's section with its settings, if `millrace plan` and `sweep` apply to it."""
    switch: str = ""
    """The recipe's key that switches it off: a section with `enabled`, or one that may be left out."""
    module: str = ""
    artefact: str = ""
    """Name of the artefact if it differs from the step's name."""
    may_start_from: tuple[str, ...] = ()
    """Models that a drafter can begin from, besides its target, if the recipe says so."""
    reads: Rule = nearest
    """What it reads in a recipe in place of each of its asset's `deps`."""
    rows: str = "sft_dataset"
    """The dataset that it learns, unless its settings name another one."""
    is_beside: bool = False
    """Of a model: whether it stands beside the chain, so that no other one starts from it and it is not served."""
    opt_in: bool = False
    """Whether it is off until a recipe names it; `status` lists it only where it is on."""
    is_daily: bool = False
    """Whether it has daily partitions (UTC) and belongs to the job `logs`."""
    ends_logs: bool = False
    """Whether it belongs to the job `logs` without partitions of its own: made once, after the days."""

    does: str = ""
    """What it does, in a few words for tables."""
    fixed_seconds: float = 1.0
    """Seconds that it takes beside products and rows: a worker that starts, models that are read, pictures."""
    record_seconds: float = 0.0
    """Seconds of each record of the logs, where records are read, or rendered and counted. Both as measured on 2 cores."""

    @property
    def file(self) -> str:
        """The asset's module in assets/."""
        return self.module or self.name

    @property
    def artefact_name(self) -> str:
        """Name of the dataset, model or release that it makes, without the workload."""
        return self.artefact or self.name


STAGES: tuple[Stage, ...] = (
    Stage("logs", "outside", "traffic", does="looks for new log objects"),
    Stage("interactions", "table", "traffic", is_daily=True, fixed_seconds=2, record_seconds=0.0006,
          does="reads logs into checked rows"),
    Stage("feedback", "table", "traffic", is_daily=True, module="interactions", does="reads feedback"),
    Stage("cleaned_interactions", "table", "traffic", is_daily=True, fixed_seconds=2, record_seconds=0.0004,
          does="applies rules to each row"),
    Stage("traffic_digest", "digest", "traffic", ends_logs=True, does="tells whether rows changed"),
    Stage("drift_report", "table", "traffic", switch="drift", is_daily=True, does="compares days of traffic"),
    Stage("judgements", "table", "traffic", switch="curation.judge", does="asks the judge for scores"),
    Stage("eval_suite", "dataset", "traffic", "build_eval_suite", does="reads evaluation items"),
    Stage("seed_examples", "dataset", "datasets", "import_seeds", does="reads seed examples"),
    Stage("curated_interactions", "dataset", "traffic", "curate", fixed_seconds=3, does="finds duplicates and leaks"),
    Stage("sft_dataset", "dataset", "datasets", "build_sft_dataset", record_seconds=0.0003,
          does="makes and splits conversations"),
    Stage("rl_prompts", "dataset", "datasets", "build_rl_prompts", switch="datasets.rl_prompts", opt_in=True,
          does="collects prompts with rewards"),
    Stage("calibration_dataset", "dataset", "datasets", "build_calibration", switch="datasets.calibration", opt_in=True,
          does="samples rows for calibration"),
    Stage("served_answers", "dataset", "datasets", "build_served_answers", reads=rows_of_every_stage,
          does="collects sampling of requests"),
    Stage("teacher_answers", "dataset", "datasets", "ask_teacher", switch="teacher", opt_in=True, reads=model_that_it_asks,
          does="asks the teacher for answers"),
    Stage("preference_dataset", "dataset", "datasets", "build_preferences", switch="datasets.preference", opt_in=True,
          does="pairs better and worse answers"),
    Stage("base_model", "model", "models", "tiny_base", role="base", fixed_seconds=11, does="fetches or builds the base"),
    Stage("length_report", "dataset", "models", "measure_lengths", fixed_seconds=2, record_seconds=0.0012,
          does="counts tokens of every row"),
    Stage("sft_model", "model", "models", "sft", role="sft", takes_model_as="model", section="sft", switch="sft",
          reads=rows_it_learns, fixed_seconds=3, record_seconds=0.0012, does="fine-tunes the base"),
    Stage("second_sft_model", "model", "models", "sft", role="second_sft", takes_model_as="model", section="second_sft",
          switch="second_sft", opt_in=True, reads=rows_it_learns, does="fine-tunes once more"),
    Stage("reward_model", "model", "models", "reward_model", takes_model_as="model", section="reward_model",
          switch="reward_model", rows="preference_dataset", is_beside=True, opt_in=True, does="learns to score answers"),
    Stage("preference_model", "model", "models", "preference", role="preference", takes_model_as="model",
          section="preference", switch="preference", rows="preference_dataset", reads=rows_or_prompts, opt_in=True,
          does="learns what users prefer"),
    Stage("rft_model", "model", "models", "rft", role="rft", takes_model_as="model", section="rft", switch="rft",
          rows="rl_prompts", reads=rows_or_prompts, opt_in=True, does="learns from rewards"),
    Stage("merged_model", "model", "models", "merge", role="merged", takes_model_as="model", switch="merge", opt_in=True,
          reads=models_it_merges, does="merges models"),
    Stage("student_model", "model", "models", "distill", role="student", takes_model_as="teacher", section="student",
          switch="student", reads=rows_it_learns, fixed_seconds=4, record_seconds=0.0012, does="cuts and distills a student"),
    Stage("quantized_model", "model", "models", "quantize", role="quantized", takes_model_as="model", switch="quantize",
          reads=rows_it_calibrates_with, does="quantizes the served model"),
    Stage("speculator_dataset", "dataset", "drafter", "generate", switch="speculator", fixed_seconds=3, record_seconds=0.0012,
          does="lets the target answer"),
    Stage("speculator", "model", "drafter", "speculator", role="speculator", switch="speculator",
          may_start_from=("base_model", "student_model"), reads=chosen_start, fixed_seconds=4, does="trains the drafter"),
    Stage("evaluation_report", "dataset", "release", "evaluate", reads=what_it_measures, fixed_seconds=10,
          does="measures models and drafters"),
    Stage("release_candidate", "release", "release", "release", artefact="release", switch="release", fixed_seconds=2,
          does="checks gates, writes pages"),
    Stage("endpoint", "endpoint", "release", switch="release", does="offers the release"),
)  # fmt: skip
"""In order of execution."""


def stage(name: str) -> Stage:
    """The stage of a name. Raises KeyError for a name that is not in the table."""
    for found in STAGES:
        if found.name == name:
            return found
    raise KeyError(f"{name} is no stage; there are {', '.join(found.name for found in STAGES)}")


NAMED_DATASET = "named_dataset"
"""Module in assets/ of the datasets under `datasets.named`."""


def named_dataset_stage(name: str) -> Stage:
    """The stage of a dataset under `datasets.named`, which only its recipe knows."""
    return Stage(name, "dataset", "datasets", "build_sft_dataset", module=NAMED_DATASET, does="makes a dataset of its own")


def model_chain() -> tuple[Stage, ...]:
    """The models from base to served, each starting from the previous one, with all stages on."""
    return tuple(found for found in STAGES if found.kind == "model" and found.group == "models" and not found.is_beside)


def models_before(name: str) -> list[str]:
    """The models of the chain whose lines stand before a stage's, from the base on. Raises ValueError for an unknown name."""
    before = [found.name for found in STAGES]
    before = before[: before.index(name)]
    return [found.name for found in model_chain() if found.name in before]


def parent_of(name: str) -> str:
    """The model that a model starts from, with all stages on. Raises KeyError for the first model."""
    before = models_before(name)
    if not before:
        raise KeyError(f"{name} starts from no other model")
    return before[-1]


def last_model() -> str:
    """The model that is served, with all stages on."""
    return model_chain()[-1].name


def artefact_stages() -> tuple[Stage, ...]:
    """The stages that make a versioned artefact: a dataset, a model or the release."""
    return tuple(found for found in STAGES if found.kind in ("dataset", "model", "release"))


def daily_stages(disabled: Collection[str] = ()) -> tuple[str, ...]:
    """Names of the stages with daily partitions, without those that a recipe switches off."""
    return tuple(found.name for found in STAGES if found.is_daily and found.name not in disabled)


def logs_stages(disabled: Collection[str] = ()) -> tuple[str, ...]:
    """Names of the stages of the job `logs`: the daily ones and what is made once after the days."""
    ends = tuple(found.name for found in STAGES if found.ends_logs and found.name not in disabled)
    return (*daily_stages(disabled), *ends)


def sections() -> dict[str, Stage]:
    """Recipe section -> the stage that trains with its settings, for `millrace plan` and `millrace sweep`."""
    return {found.section: found for found in STAGES if found.section}
