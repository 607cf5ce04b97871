"""The settings of a job that decide its artefact's version."""

from __future__ import annotations

from typing import Any

from model_ops.settings import Settings
from model_ops.training.settings import SAME_RESULTS


def counted_settings(settings: Settings) -> dict[str, Any]:
    """The settings that can change a job's result. settings: resolved."""
    return _counted(settings.model_dump(mode="json"))


def _counted(config: dict[str, Any]) -> dict[str, Any]:
    """The settings without those that change no result, also of a training within an operation (quantize.distil). Where a
    training may end early, its validation and its number of devices decide when."""
    ends_early = (config.get("early_end") or {}).get("enabled", False)
    left_out = SAME_RESULTS - {"validation_tokens", "mesh"} if ends_early else SAME_RESULTS | {"early_end"}
    return {key: _counted(value) if isinstance(value, dict) else value for key, value in config.items() if key not in left_out}
