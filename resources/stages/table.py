"""Declares every stage of the graph, and what the rest of the project asks of it.

    stage("student_model").switch              # "student": the recipe's section that switches the stage off
    model_chain()                              # stages from base to served model, each starting from the one before

A new stage is one declaration here, an asset of its name in the file `module` of assets/ (a file of its own name if left out)
and, on weights, one operation. A model between two others is declared between them: the next starts from it. An asset names
in `deps` whatever it may read; the rule `reads` of its stage says what it reads in one recipe."""

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
    models = [model.name for model in model_chain()]
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
    """Self-distillation reads the student's start model; external teachers read none. `rl_prompts` only where the teacher
    answers them."""
    if dep == "rl_prompts":
        return (dep,) if recipe.rows_of(reader.name) == dep else ()
    if dep == parent_of("student_model"):
        return (recipe.source_of("student_model"),) if recipe.taught_by_itself else ()
    return nearest(recipe, reader, dep)


def models_it_merges(recipe: Choices, reader: Stage, dep: str) -> tuple[str, ...]:
    """The parent, and the parents of the trainings on preferences and on rewards that the recipe has."""
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
    """Every model; pairs and prompts only where a model learnt them."""
    learners = {each.name for each in STAGES if each.measured_as and each.rows == dep}
    return () if learners and learners <= set(recipe.disabled) else nearest(recipe, reader, dep)


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
    switch: str = ""
    """The recipe's key that switches it off: a section with `enabled`, or one that may be left out."""
    module: str = ""
    artefact: str = ""
    """Name of the artefact if it differs from the step's name."""
    reads: Rule = nearest
    """What it reads in a recipe in place of each of its asset's `deps`."""
    opt_in: bool = False
    """Whether it is off until a recipe names it; `status` lists it only where it is on."""
    is_daily: bool = False
    """Whether it has daily partitions (UTC) and belongs to the job `logs`."""
    ends_logs: bool = False
    """Whether it belongs to the job `logs` without partitions of its own: made once, after the days."""

    section: str = ""
    """The recipe's section with the settings of its training."""
    rows: str = ""
    """The dataset that it is trained on, unless its settings name another one."""
    role: str = ""
    """Name of its model in other jobs and in the evaluation report."""
    takes_model_as: str = ""
    """The role under which its job takes the model that it starts from."""
    off_chain: bool = False
    """Of a model: no other one starts from it and it is not served."""
    may_start_from: tuple[str, ...] = ()
    """Models that a drafter can begin from, besides its target, if the recipe says so."""
    taught: bool = False
    """Whether it can learn a teacher's answers (`teacher.trains`)."""
    leaves_out_long_rows: bool = False
    """Whether its training leaves out a row longer than the model's context; other trainings end there."""
    own_answers: str = ""
    """File of its version with a row for each answer that its model gave in training; an erasure cleans it."""
    answers_show_text: bool = False
    """Whether that file shows what people and models said, so that no signature, package or push takes it."""

    gains: bool = False
    """Whether a release with its model must gain on the base model."""
    compares_loss: bool = False
    """Whether the evaluation compares its held-out loss with that of the model that it started from."""
    measured_as: str = ""
    """Input of the evaluation that takes its `rows`, where they are measured beside `sft_dataset`."""
    card: str = ""
    """What the card of its version says of the model."""
    hub_relation: str = ""
    """How its model came from the base model, in the words of the Hugging Face Hub."""
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


_TRAFFIC: tuple[Stage, ...] = (
    Stage("logs", "outside", "traffic", module="traffic", does="looks for new log objects"),
    Stage("interactions", "table", "traffic", is_daily=True, fixed_seconds=2, record_seconds=0.0006,
          module="traffic", does="reads logs into checked rows"),
    Stage("feedback", "table", "traffic", is_daily=True, module="traffic", does="reads feedback"),
    Stage("cleaned_interactions", "table", "traffic", is_daily=True, fixed_seconds=2, record_seconds=0.0004,
          module="traffic", does="applies rules to each row"),
    Stage("traffic_digest", "digest", "traffic", ends_logs=True, module="traffic", does="tells whether rows changed"),
    Stage("drift_report", "table", "traffic", switch="drift", is_daily=True, does="compares days of traffic"),
    Stage("judgements", "table", "traffic", switch="curation.judge", module="traffic", does="asks the judge for scores"),
    Stage("eval_suite", "dataset", "traffic", "build_eval_suite", module="conversations", does="reads evaluation items"),
    Stage("seed_examples", "dataset", "datasets", "import_seeds", module="conversations", does="reads seed examples"),
    Stage("curated_interactions", "dataset", "traffic", "curate", fixed_seconds=3,
          module="traffic", does="finds duplicates and leaks"),
)  # fmt: skip

_DATASETS: tuple[Stage, ...] = (
    Stage("sft_dataset", "dataset", "datasets", "build_sft_dataset", record_seconds=0.0003,
          module="conversations", does="makes and splits conversations"),
    Stage("rl_prompts", "dataset", "datasets", "build_rl_prompts", "datasets.rl_prompts", opt_in=True,
          module="answers", does="collects prompts with rewards"),
    Stage("calibration_dataset", "dataset", "datasets", "build_calibration", "datasets.calibration", opt_in=True,
          module="conversations", does="samples rows for calibration"),
    Stage("served_answers", "dataset", "datasets", "build_served_answers", reads=rows_of_every_stage,
          module="conversations", does="collects sampling of requests"),
    Stage("teacher_answers", "dataset", "datasets", "ask_teacher", "teacher", opt_in=True, reads=model_that_it_asks,
          module="answers", does="asks the teacher for answers"),
    Stage("preference_dataset", "dataset", "datasets", "build_preferences", "datasets.preference", opt_in=True,
          module="answers", does="pairs better and worse answers"),
)  # fmt: skip

_MODELS: tuple[Stage, ...] = (
    Stage("base_model", "model", "models", "tiny_base", section="tiny", role="base", fixed_seconds=11,
          module="models", does="fetches or builds the base",
          card="The model that the workload's other models began with: imported from elsewhere or, with `tiny`, trained from "
          "scratch."),
    Stage("length_report", "dataset", "models", "measure_lengths", fixed_seconds=2, record_seconds=0.0012,
          module="reports", does="counts tokens of every row"),
    Stage("sft_model", "model", "models", "sft", "sft", section="sft", rows="sft_dataset", role="sft", takes_model_as="model",
          reads=rows_it_learns, taught=True, gains=True, compares_loss=True,
          fixed_seconds=3, record_seconds=0.0012, module="models", does="fine-tunes the base",
          hub_relation="finetune", card="The model before it, fine-tuned on the answers of its dataset."),
    Stage("second_sft_model", "model", "models", "sft", "second_sft", section="second_sft", rows="sft_dataset",
          role="second_sft", takes_model_as="model", reads=rows_it_learns, opt_in=True, gains=True,
          module="models", does="fine-tunes once more",
          hub_relation="finetune", card="The model before it, fine-tuned on the answers of its dataset."),
    Stage("reward_model", "model", "models", "reward_model", "reward_model", section="reward_model",
          rows="preference_dataset", takes_model_as="model", off_chain=True, opt_in=True, leaves_out_long_rows=True,
          module="models", does="learns to score answers",
          card="A model that scores answers: the higher score is on the answer that people would rather have. Never the only "
          "reward of a training, and no model to chat with."),
    Stage("preference_model", "model", "models", "preference", "preference", section="preference",
          rows="preference_dataset", role="preference", takes_model_as="model", reads=rows_or_prompts, opt_in=True,
          leaves_out_long_rows=True, own_answers="sampled.parquet", gains=True,
          measured_as="preferences", module="models", does="learns what users prefer",
          card="The model before it, trained on pairs of a chosen and a rejected answer, or on answers with a verdict. The "
          "log-probability of chosen answers may have fallen (logp_chosen in metrics.jsonl): what it learns is the "
          "difference."),
    Stage("rft_model", "model", "models", "rft", "rft", section="rft", rows="rl_prompts", role="rft", takes_model_as="model",
          reads=rows_or_prompts, opt_in=True, leaves_out_long_rows=True,
          own_answers="rollouts.parquet", answers_show_text=True, gains=True, measured_as="prompts",
          module="models", does="learns from rewards",
          card="The model before it, trained on its own answers by rewards: answers with a high grade became likelier. It is "
          "good at what the grader rewards; `before_validation_pass_rate` and `validation_pass_rate` compare it with its "
          "start on held-out prompts."),
    Stage("merged_model", "model", "models", "merge", "merge", role="merged", takes_model_as="model", reads=models_it_merges,
          opt_in=True, gains=True, module="models", does="merges models",
          hub_relation="merge", card="The weighted merge of several models."),
    Stage("student_model", "model", "models", "distill", "student", section="student", rows="sft_dataset", role="student",
          takes_model_as="teacher", reads=rows_it_learns, taught=True, compares_loss=True,
          fixed_seconds=4, record_seconds=0.0012, module="models", does="cuts and distills a student",
          hub_relation="finetune", card="A student that was trained on its teacher's distributions."),
    Stage("quantized_model", "model", "models", "quantize", "quantize", role="quantized", takes_model_as="model",
          reads=rows_it_calibrates_with, module="models", does="quantizes the served model",
          hub_relation="quantized", card="The model before it with quantized weights."),
)  # fmt: skip

_RELEASE: tuple[Stage, ...] = (
    Stage("speculator_dataset", "dataset", "drafter", "generate", "speculator", fixed_seconds=3, record_seconds=0.0012,
          module="drafter", does="lets the target answer"),
    Stage("speculator", "model", "drafter", "speculator", "speculator", section="speculator", rows="speculator_dataset",
          role="speculator", may_start_from=("base_model", "student_model"), reads=chosen_start, fixed_seconds=4,
          module="drafter", does="trains the drafter",
          card="A drafter for speculative decoding. It drafts for the target that it was made from and for no other."),
    Stage("evaluation_report", "dataset", "release", "evaluate", reads=what_it_measures, fixed_seconds=10,
          module="reports", does="measures models and drafters"),
    Stage("release_candidate", "release", "release", "release", "release", artefact="release", fixed_seconds=2,
          module="release", does="checks gates, writes pages"),
    Stage("endpoint", "endpoint", "release", switch="release", module="release", does="offers the release"),
)  # fmt: skip

STAGES: tuple[Stage, ...] = (*_TRAFFIC, *_DATASETS, *_MODELS, *_RELEASE)
"""In order of execution."""


def stage(name: str) -> Stage:
    """The stage of a name. Raises KeyError for a name that is not in the table."""
    for each in STAGES:
        if each.name == name:
            return each
    raise KeyError(f"{name} is no stage; there are {', '.join(each.name for each in STAGES)}")


def named_dataset_stage(name: str) -> Stage:
    """The stage of a dataset under `datasets.named`, which only its recipe knows."""
    return Stage(name, "dataset", "datasets", "build_sft_dataset", module="conversations", does="makes a dataset of its own")


def model_chain() -> tuple[Stage, ...]:
    """The models from base to served, each starting from the previous one, with all stages on."""
    return tuple(each for each in STAGES if each.kind == "model" and each.group == "models" and not each.off_chain)


def models_before(name: str) -> list[str]:
    """The models of the chain whose lines stand before a stage's, from the base on. Raises ValueError for an unknown name."""
    before = [each.name for each in STAGES]
    before = before[: before.index(name)]
    return [each.name for each in model_chain() if each.name in before]


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
    return tuple(each for each in STAGES if each.kind in ("dataset", "model", "release"))


def daily_stages(disabled: Collection[str] = ()) -> tuple[str, ...]:
    """Names of the stages with daily partitions, without those that a recipe switches off."""
    return tuple(each.name for each in STAGES if each.is_daily and each.name not in disabled)


def logs_stages(disabled: Collection[str] = ()) -> tuple[str, ...]:
    """Names of the stages of the job `logs`: the daily ones and what is made once after the days."""
    ends = tuple(each.name for each in STAGES if each.ends_logs and each.name not in disabled)
    return (*daily_stages(disabled), *ends)


def trained_sections() -> dict[str, Stage]:
    """Recipe section -> the stage that trains with its settings."""
    return {each.section: each for each in STAGES if each.section}


def planned_sections() -> dict[str, Stage]:
    """The sections that `millrace plan` knows: of trainings that start from another model of the chain."""
    return {section: each for section, each in trained_sections().items() if each.takes_model_as}
