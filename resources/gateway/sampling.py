"""Sampling parameters that a server applies where a request names none: those in generation_config.json of its weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resources.gateway.store import CaptureError

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Parameters that vLLM and SGLang read from the file."""


def read_sampling(path: Path | None) -> Mapping[str, Any]:
    """The defaults in a file that a person named. Raises CaptureError where it cannot be read."""
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {name: content[name] for name in SAMPLING if content.get(name) is not None}
    except (OSError, ValueError, AttributeError) as error:
        raise CaptureError(f"{path} is no generation_config.json: give the file beside the served weights") from error


def server_sampling(path: Path) -> Mapping[str, Any]:
    """The defaults beside served weights; none where there is no such file."""
    try:
        return read_sampling(path)
    except CaptureError:
        return {}
