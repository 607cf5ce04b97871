"""Which keys of a record a format reads itself: taken from its SQL, so that no list has to be kept.

    keys_read(FORMATS["openai_pairs"])     # {"timestamp", "request", "request.metadata.session_id", ...}, dotted paths
    looks_beside(FORMATS["openai_pairs"])  # whether its records may hold columns under other names (synonyms.py)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from resources.reading.formats.format import Format
from resources.reading.providers.calls import ENVELOPE, READ, TIMES
from resources.reading.synonyms import BODIES
from resources.sql_files import sql_text

_APART = frozenset(("otlp", "capture_note", "log_lines", "vllm", "vllm_lines", "tokens", "text", "oasst", "trajectories",
                    "preferences", "openai_batch", "anthropic_batch", "gemini_batch", "langsmith"))
"""Formats without a logger's keys beside their own: data sets, lines of text, spans with attributes (otlp.py reads them), runs
whose session is a project."""
_OWN = {
    "stored_completions": frozenset((
        "object", "system_fingerprint", "service_tier", "seed", "temperature", "top_p", "stream", "store", "usage", "first_id",
        "last_id", "has_more", "metadata.workload_id", "metadata.client_id")),
    "sglang": frozenset(("obj",)), "messages": frozenset(("parallel_tool_calls",)),
    "anthropic": frozenset(("request.metadata.user_id",)),
}
"""What formats read, or know and leave, in other ways than a path in their SQL."""
_BODY: dict[str, Any] = dict.fromkeys(sorted(BODIES - {"completion_tokens", "prompt_tokens"}))
WITHOUT = json.dumps({**_BODY, "request": _BODY, "response": _BODY})
"""Takes the contents out of a record, as a merge patch."""


def looks_beside(form: Format) -> bool:
    return "interactions" in form.fills and (form.rows_as or form.name) not in _APART


@lru_cache(maxsize=256)
def keys_read(form: Format) -> frozenset[str]:
    """Dotted paths that the format reads; what is below a path is read too, and `request` stands for a body."""
    if "interactions" not in form.fills:
        return frozenset()
    name = form.rows_as or form.name
    text = sql_text(f"reading/formats/{name}/interactions")
    found = {path for spec in re.findall(r"json_transform\(\s*raw,\s*'(.*?)'\s*\)", text, re.S)
             for path in _paths(json.loads(spec.replace("''", "'")))}
    found |= set(re.findall(r"(?:raw, |raw ->> )'\$\.([\w.]+)'", text))
    if "provider_calls(" in text:
        found |= {*ENVELOPE, *TIMES, *READ}
    found |= {path.partition(".")[0] for path in found if path.startswith(("request.", "response."))}
    return frozenset(found | BODIES | _OWN.get(name, frozenset()))


def _paths(spec: Any, before: str = "") -> Iterator[str]:
    for key, inner in spec.items():
        if isinstance(inner, dict):
            yield from _paths(inner, f"{before}{key}.")
        else:
            yield before + key
