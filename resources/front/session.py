"""The session that a request belongs to, so that all its requests are answered by the same release.

    session_of(headers, body)        # "s-17", or None

Read are, in this order: the header X-Session-Id, and in a JSON body `session_id`, `metadata.session_id`, `prompt_cache_key`
and `user`. A body is parsed only by callers that have more than one server to choose from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

HEADER = "X-Session-Id"
FIELDS = ("session_id", "prompt_cache_key", "user")


def session_of(headers: Mapping[str, str], body: bytes) -> str | None:
    """None for a request that names no session."""
    if named := headers.get(HEADER):
        return named
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):  # no JSON: the server will say so
        return None
    if not isinstance(said, dict):
        return None
    metadata = said.get("metadata")
    found: list[Any] = [said.get(FIELDS[0]), metadata.get(FIELDS[0]) if isinstance(metadata, dict) else None,
                        *(said.get(name) for name in FIELDS[1:])]
    return next((text for text in found if isinstance(text, str) and text), None)
