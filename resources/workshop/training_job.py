"""What of a training operation decides its artefact's version: its settings, and the file of its code.

    config, counted = training_config("sft", settings)     # all settings for the worker; those that count for the version
    training_source("sft")                                 # "model_ops/sft.py"
"""

from __future__ import annotations

from typing import Any

from model_ops.specs import OPERATIONS
from model_ops.training.settings import SAME_RESULTS, Settings, TrainingSettings


def training_config(operation: str, settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """All settings of a job, with nothing left open, and those of them that can change its result."""
    resolved = settings.resolved() if isinstance(settings, TrainingSettings) else settings
    config = OPERATIONS[operation].model_validate(resolved.model_dump()).model_dump(mode="json")
    return config, {key: value for key, value in config.items() if key not in SAME_RESULTS}


def training_source(operation: str) -> str:
    """The file that holds an operation, relative to the project."""
    return f"model_ops/{operation}.py"
