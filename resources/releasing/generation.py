"""generation_config.json of a release: the target's, with the ids at which its answers end as a list.

    generation_config(directory)        # {"eos_token_id": [151645, 151643], "temperature": 0.7, ...}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class NoStopIds(ValueError):
    """A target whose answers would never end by themselves."""


def generation_config(target: Path) -> dict[str, Any]:
    """From generation_config.json, with the stop ids of config.json where it names none. Raises NoStopIds if neither does."""
    found = _read(target / "generation_config.json")
    ids = found.get("eos_token_id")
    ids = _read(target / "config.json").get("eos_token_id") if ids is None else ids
    if ids is None or ids == []:
        raise NoStopIds(f"{target} names no eos_token_id in generation_config.json or config.json, so answers would never end: "
                        "set it in the base model and train again")
    return {**found, "eos_token_id": ids if isinstance(ids, list) else [ids]}


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
