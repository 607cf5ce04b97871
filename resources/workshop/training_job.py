"""What decides the version of a training: the settings of its job that count, its length limits, and its base model's commit.

A base stays what it is until somebody asks for another commit. Length limits are settings of operation `measure_lengths`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from model_ops.evaluation import EvaluateSettings
from model_ops.files import hub
from model_ops.jobs import Settings
from model_ops.operations import measure_lengths_settings
from model_ops.speculators import SpeculatorSettings
from model_ops.training import SAME_RESULTS, TrainingSettings
from resources.artefacts import Registry
from resources.digests import source_digest
from resources.manifests import artefact_version
from resources.releases import ReleaseSettings
from resources.stages import trained_sections


def counted_settings(settings: Settings) -> dict[str, Any]:
    """The settings that can change a job's result. settings: resolved."""
    return _counted(settings.model_dump(mode="json"))


def _counted(config: dict[str, Any]) -> dict[str, Any]:
    """The settings without those that change no result, also of a training within an operation (quantize.distil)."""
    return {
        key: _counted(value) if isinstance(value, dict) else value for key, value in config.items() if key not in SAME_RESULTS
    }


def length_limits(
    trained: Mapping[str, TrainingSettings], evaluation: EvaluateSettings, release: ReleaseSettings
) -> measure_lengths_settings.LengthSettings:
    """Limits of the stages that the recipe has and that learn conversations. trained: settings by section, of those that
    train."""
    filled = {name: settings.resolved() for name, settings in trained.items()}
    filled |= {  # reasoning is closed before a row counts as too long
        name: settings.model_copy(update={"overflow": "truncate"})
        for name, settings in filled.items()
        if getattr(settings, "reasoning_budget", None)
    }
    drafter = next((each for each in filled.values() if isinstance(each, SpeculatorSettings)), None)
    return measure_lengths_settings.LengthSettings(
        training={
            name: measure_lengths_settings.TrainingLimit(max_length=filled[name].max_length, overflow=filled[name].overflow)
            for name, stage in trained_sections().items()
            if name in filled and stage.rows == "sft_dataset"
        },
        drafter=measure_lengths_settings.DrafterLimit(
            max_length=drafter.max_length,
            max_new_tokens=drafter.answers.max_new_tokens,
            prompts=drafter.answers.prompts,
            seed=drafter.answers.seed,
        )
        if isinstance(drafter, SpeculatorSettings)
        else None,
        evaluation=measure_lengths_settings.EvaluationLimit(
            max_length=evaluation.max_length,
            max_new_tokens=evaluation.max_new_tokens,
            acceptance_is_gated=drafter is not None and release.enabled and release.gates.acceptance_length is not None,
        ),
    )


NAME, OPERATION = "base_model", "import_base"


def commit_to_import(
    registry: Registry, model: str, branch: str, wanted: str | None, ask: Callable[[str, str | None], str | None]
) -> str | None:
    """The commit of the wanted branch, tag or commit; without, the one that the current base was imported from; of a new base,
    or of another branch than the current base's, the newest.

    branch: the recipe's: a branch, a tag or a commit; "" for the default branch. ask: (model, revision) -> its commit. None for
    a directory, where no commit can be known, and for a base that this code imported before commits were recorded: it stays
    valid."""
    if Path(model).is_dir():
        return None
    if wanted:
        return wanted if hub.is_commit(wanted) else ask(model, wanted) or wanted
    if hub.is_commit(branch):
        return branch
    current = registry.current("model", NAME) if registry.exists("model", NAME) else None
    if (
        current is not None
        and current.op == OPERATION
        and outside_name(model, branch) in {item.name for item in current.inputs}
    ):
        known = current.config.get("revision")
        code = source_digest(f"model_ops/operations/{OPERATION}.py")
        if known or artefact_version(OPERATION, code, current.config, current.inputs) == current.version:
            return known
    return ask(model, branch or None) or branch or None


def outside_name(model: str, branch: str) -> str:
    """A base model as an external input is named: with the branch, if the recipe names one."""
    return f"{model}@{branch}" if branch else model
