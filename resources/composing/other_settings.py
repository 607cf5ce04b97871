"""The recipe's settings of datasets besides `datasets.sft`: preference, rl_prompts, calibration."""

from __future__ import annotations

from pydantic import Field, field_validator

from model_ops.settings import Settings
from resources.composing.eval_suite import EvalSettings

ALL_ROWS = 2**62
"""A bound that no dataset reaches."""


class PreferenceSettings(Settings):
    """Pairs of a chosen and a rejected answer to one prompt, from feedback, regenerated and edited answers, and a teacher.

    The splits are those of `datasets.sft`.
    """

    min_difference: float = Field(
        0.5, gt=0, description="Least difference of feedback between two answers to a prompt that makes them a pair; an answer "
        "without feedback counts as 0")
    max_rows: int | None = Field(None, ge=1, description="Most training pairs. Left out: all")


class RlPromptSettings(Settings):
    """Prompts with data to verify an answer: lines of reinforcement fine-tuning in the logs, and files of tasks.

    The splits are those of `datasets.sft`. Prompts that contain an item of `evals` are left out.
    """

    tasks: dict[str, EvalSettings] = Field(
        default_factory=dict, description="Files of tasks by name, in the formats of `evals`; they are for training, so none "
        "of them may be under `evals` too")
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
