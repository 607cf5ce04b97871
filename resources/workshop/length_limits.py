"""The limits on length of a recipe's stages, as settings of operation `measure_lengths`.

    length_limits(policy, {"sft": sft_settings, "student": student_settings}, speculator_settings, evaluation, release)
"""

from __future__ import annotations

from collections.abc import Mapping

from model_ops.evaluation.settings import EvaluateSettings
from model_ops.operations.measure_lengths_settings import DrafterLimit, EvaluationLimit, LengthSettings, TrainingLimit
from model_ops.speculators.settings import SpeculatorSettings
from model_ops.training.settings import TrainingSettings
from resources.releasing.model_policy import ModelPolicy
from resources.releasing.release import ReleaseSettings
from resources.stages import sections


def length_limits(policy: ModelPolicy, training: Mapping[str, TrainingSettings], speculator: SpeculatorSettings,
                  evaluation: EvaluateSettings, release: ReleaseSettings) -> LengthSettings:
    """Limits of the stages that the recipe has. training: settings by section."""
    filled = {name: training[name].resolved() for name, found in sections().items() if found.name not in policy.disabled}
    answers = speculator.answers
    gated = policy.speculator and release.gates.acceptance_length is not None
    return LengthSettings(
        training={name: TrainingLimit(max_length=found.max_length, overflow=found.overflow) for name, found in filled.items()},
        drafter=DrafterLimit(max_length=speculator.resolved().max_length, max_new_tokens=answers.max_new_tokens,
                             prompts=answers.prompts, seed=answers.seed) if policy.speculator else None,
        evaluation=EvaluationLimit(
            max_length=evaluation.max_length, max_new_tokens=evaluation.max_new_tokens,
            acceptance_is_gated=gated and "release_candidate" not in policy.disabled),
    )
