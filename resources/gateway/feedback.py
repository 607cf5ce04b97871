"""POST /feedback: what people or graders say about an answer, kept beside the traffic.

    {"id": "chatcmpl-123", "name": "thumbs", "value": "down", "comment": "it ran in circles"}

id: of the answer (its own id, or the X-Request-Id of its request); instead of it session_id or trace_id. value: a number, a
word such as up or down, true or false. name, comment, label, source: texts, and optional. Feedback about an id that was never
seen is kept too: ingest says in `feedback.tie` what it belongs to.
"""

import json
import math
import time
from typing import Any

from aiohttp import web

from resources.gateway.journal import Journal
from resources.gateway.keys import KeyRules
from resources.gateway.pass_through import error_response
from resources.gateway.recorder import CREDENTIALS

ABOUT = {
    "id": "response_id",
    "response_id": "response_id",
    "request_id": "response_id",
    "trace_id": "trace_id",
    "session_id": "session_id",
}
TEXTS = ("name", "label", "comment", "source")
MOST_BYTES = 256 << 10
MOST_ID = 1_024


class FeedbackError(Exception):
    """A body that is no feedback; the message says what is missing."""


class FeedbackDoor:
    """Answers POST /feedback. written: how many so far."""

    def __init__(self, journal: Journal, rules: KeyRules):
        self.journal, self.rules, self.written = journal, rules, 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """202 with {"kept": true}; 400 for what is no feedback; 503 where it cannot be kept, so that it may be sent again."""
        try:
            record = feedback_record(await request.read())
        except FeedbackError as error:
            return error_response(400, str(error), "invalid_request_error")
        rule = self.rules.of(*map(request.headers.get, CREDENTIALS))
        if not rule.keep:
            return web.json_response({"kept": False, "why": "nothing is kept of this key's traffic"})
        if rule.workload:
            record["workload_id"] = rule.workload
        if not self.journal.append({"kind": "feedback", "at": time.time()}, answer=[json.dumps(record).encode()]):
            return error_response(
                503, "the feedback cannot be kept now: send it again later", "server_error", {"Retry-After": "30"}
            )
        self.written += 1
        return web.json_response({"kept": True}, status=202)


def feedback_record(body: bytes) -> dict[str, Any]:
    """A record of the format `feedback`. Raises FeedbackError."""
    if len(body) > MOST_BYTES:
        raise FeedbackError(f"feedback may have {MOST_BYTES >> 10} KiB")
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise FeedbackError('the body is no JSON object such as {"id": "chatcmpl-123", "name": "thumbs", "value": "up"}')
    record: dict[str, Any] = {}
    for name, column in ABOUT.items():
        if (value := said.get(name)) is not None:
            if not isinstance(value, str) or not 0 < len(value) <= MOST_ID:
                raise FeedbackError(f"{name} is a text of at most {MOST_ID} characters")
            record.setdefault(column, value)
    if not record:
        raise FeedbackError("id is missing: the id of the answer that the feedback is about (or session_id, or trace_id)")
    for name in TEXTS:
        if (value := said.get(name)) is not None:
            if not isinstance(value, str):
                raise FeedbackError(f"{name} is a text")
            record[name] = value
    value = said.get("value")
    if isinstance(value, dict | list) or (isinstance(value, float) and not math.isfinite(value)):
        raise FeedbackError("value is a number, a word such as up or down, true or false")
    if value is None and not record.get("label"):
        raise FeedbackError("value is missing: a number, a word such as up or down, true or false")
    return record if value is None else {**record, "value": value}
