"""Bits of a model directory's weights, by its config.json."""

from __future__ import annotations

import json
from pathlib import Path

UNQUANTIZED = 16


def served_bits(directory: Path) -> int:
    """The fewest bits of a layer's weights, as `quantization_config` names them; 16 for float weights."""
    quantization = json.loads((directory / "config.json").read_text()).get("quantization_config") or {}
    groups = quantization.get("config_groups", {}).values()
    return min((int(group["weights"]["num_bits"]) for group in groups if group.get("weights")), default=UNQUANTIZED)
