"""Request and response of a logged call of a provider.

    request, response = bodies(record)      # {} for what is missing or no object

{request, response}, or full_request and full_response as Vertex AI logs them to BigQuery. A body may be JSON in a text.
"""

from __future__ import annotations

import json
from typing import Any


def bodies(record: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two bodies of a record."""
    return (body(record.get("request", record.get("full_request"))),
            body(record.get("response", record.get("full_response"))))


def is_pair(record: dict[str, Any]) -> bool:
    """Whether a record has a request and a response."""
    return ("request" in record and "response" in record) or ("full_request" in record and "full_response" in record)


def body(value: Any) -> dict[str, Any]:
    """One body as an object."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}
