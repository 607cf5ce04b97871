"""The table of operations: name -> settings. Adding an operation is a file here, its settings beside it, and one line below.

    settings_of("sft", {"steps": 3})       # SftSettings, checked, nothing open

`model_ops/operations/<name>.py` holds `run(job, progress) -> metrics`. Importing this file imports no torch; operations do not
import it, so that a change of one operation's settings changes no other operation's version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from model_ops.answering.settings import GenerateSettings
from model_ops.operations.distill_settings import StudentSettings
from model_ops.operations.embed_settings import EmbedSettings
from model_ops.operations.evaluate_settings import EvaluateSettings
from model_ops.operations.import_base_settings import ImportBaseSettings
from model_ops.operations.quantize_settings import QuantizeSettings
from model_ops.operations.sft_settings import SftSettings
from model_ops.operations.tiny_base_settings import TinyBaseSettings
from model_ops.settings import Settings
from model_ops.speculators.registry import AnySpeculatorSettings

OPERATIONS: dict[str, Any] = {
    "tiny_base": TinyBaseSettings,
    "import_base": ImportBaseSettings,
    "sft": SftSettings,
    "distill": StudentSettings,
    "quantize": QuantizeSettings,
    "generate": GenerateSettings,
    "speculator": AnySpeculatorSettings,
    "evaluate": EvaluateSettings,
    "embed": EmbedSettings,
}
"""Operation -> its settings: a Settings model, or a union of them."""


def settings_of(operation: str, values: Mapping[str, Any]) -> Settings:
    """An operation's settings, checked, open values filled. Raises ValueError for an unknown operation or a wrong value."""
    if operation not in OPERATIONS:
        raise ValueError(f"unknown operation {operation!r}; known: {', '.join(OPERATIONS)}")
    return TypeAdapter(OPERATIONS[operation]).validate_python(dict(values)).resolved()
