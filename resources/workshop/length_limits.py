"""The limits on length of a recipe's stages, as settings of operation `measure_lengths`."""

from __future__ import annotations

from collections.abc import Mapping

from model_ops.evaluation.settings import EvaluateSettings
from model_ops.operations.measure_lengths_settings import DrafterLimit, EvaluationLimit, LengthSettings, TrainingLimit
from model_ops.training.settings import TrainingSettings
from resources.releasing.release import ReleaseSettings
from resources.stages import sections


def length_limits(trained: Mapping[str, TrainingSettings], evaluation: EvaluateSettings,
                  release: ReleaseSettings) -> LengthSettings:
    """Limits of the stages that the recipe has. trained: settings by section, of those that train."""
    filled = {name: settings.resolved() for name, settings in trained.items()}
    drafter = filled.get("speculator")
    return LengthSettings(
        training={name: TrainingLimit(max_length=filled[name].max_length, overflow=filled[name].overflow)
                  for name in sections() if name in filled},
        drafter=DrafterLimit(max_length=drafter.max_length, max_new_tokens=drafter.answers.max_new_tokens,
                             prompts=drafter.answers.prompts, seed=drafter.answers.seed) if drafter else None,
        evaluation=EvaluationLimit(
            max_length=evaluation.max_length, max_new_tokens=evaluation.max_new_tokens,
            acceptance_is_gated=drafter is not None and release.enabled and release.gates.acceptance_length is not None),
    )
