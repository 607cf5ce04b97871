"""Writes what passes through a front into the journal: the watcher of the capture layer.

In the front's event loop an exchange costs a few dictionaries, a checksum and one write to a file in the page cache. The frame
is written before the client can see the end of the answer (the last event of a stream, the last byte of an answer of known
length), so what was answered is in the journal. Nothing of a request with `keep: false` is written.

Bodies are parsed only where a sampling rate below 1 needs their session. Stream ends and token ids are found in the bytes:
inside a JSON string a quotation mark is written with a backslash, so `"token_ids":` is a key and never text. Each API has its
own last event: `data: [DONE]` of Chat Completions, `message_stop` of Anthropic's Messages, and `response.completed`,
`.incomplete` or `.failed` of the Responses API. Events may be cut anywhere by the network. Streams are passed on with the ids
that vLLM was asked for: clients ignore fields that they do not know."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from resources.gateway.journal import Journal
from resources.gateway.keys import KeyRule, KeyRules
from resources.gateway.pass_through import RELEASE_HEADER, TARGET_HEADER
from resources.gateway.record import STREAM, Unreadable, plain, user_and_session
from resources.gateway.routes import HEADER as SESSION_HEADER
from resources.gateway.routes import Backend

CAPTURED = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}
"""Paths whose exchanges are kept, and the API of each."""
ASKED_FOR_IDS = "chat"
CREDENTIALS = ("Authorization", "X-Api-Key", "Api-Key")
MOST_BYTES = 64 << 20
"""Of request and answer together: a longer record would be quarantined."""
MOST_HEADER = 256


class TrafficRecorder:
    """digest: of the weights that answer, where the server behind does not say it. sampling: parameters that the server applies
    where a request names none. Counts what is not in the journal on purpose: other (another path), zero_retention, not_sampled,
    unanswered (the client left before the answer began), request_too_long (the front refused it)."""

    def __init__(
        self, journal: Journal, rules: KeyRules, ask_for_ids=False, digest: str = "", sampling: Mapping[str, Any] | None = None
    ):
        self.journal, self.rules, self.ask_for_ids = journal, rules, ask_for_ids
        self.digest, self.sampling = digest, dict(sampling or {})
        self.left_out = Counter[str]()

    def begins(self, request: web.Request, body: bytes) -> ExchangeRecording | None:
        """None for what is not kept."""
        form = CAPTURED.get(request.path.rstrip("/")) if request.method == "POST" else None
        if form is None:
            self.left_out["other"] += 1
            return None
        headers = request.headers
        rule = self.rules.of(*map(headers.get, CREDENTIALS))
        if not rule.keep:
            self.left_out["zero_retention"] += 1
            return None
        if rule.sample < 1 and not rule.samples(_session(headers, body)):
            self.left_out["not_sampled"] += 1
            return None
        return ExchangeRecording(self, form, rule, headers, body)

    def refuses(self, request: web.Request) -> None:
        self.left_out["request_too_long"] += 1


class ExchangeRecording:
    """One exchange. body: what the server gets."""

    def __init__(self, recorder: TrafficRecorder, form: str, rule: KeyRule, headers: Mapping[str, str], request: bytes):
        self._recorder, self._request, self._began = recorder, request, time.perf_counter()
        self._meta: dict[str, Any] = {"kind": "exchange", "form": form, "at": time.time()}
        for name, value in (
            ("session", headers.get(SESSION_HEADER)),
            ("request_id", headers.get("X-Request-Id")),
            ("request_encoding", headers.get("Content-Encoding")),
            ("client", rule.client),
            ("workload", rule.workload),
        ):
            if value:
                self._meta[name] = value[:MOST_HEADER]
        if rule.sample < 1:
            self._meta["kept_share"] = rule.sample
        changed = asking(request) if recorder.ask_for_ids and form == ASKED_FOR_IDS else None
        self._asks, self.body = changed is not None, request if changed is None else changed
        self._parts: list[bytes] = []
        self._bytes = self._request_bytes = len(request)
        self._length: int | None = None
        self._end: StreamEnd | None = None
        self._over = self._was_refused = False

    @property
    def wants_whole(self) -> bool:
        """The ids that its client did not ask for are taken out of a whole answer."""
        return self._asks

    def starts(self, backend: Backend, status: int, headers: Mapping[str, str], length: int | None) -> None:
        meta, recorder = self._meta, self._recorder
        meta["status"], meta["type"] = status, headers.get("Content-Type", "")
        if self._was_refused and status < 400:
            recorder.ask_for_ids = False  # the server refuses return_token_ids: no further request asks for ids
        self._length = length
        self._end = StreamEnd(meta["form"]) if STREAM in meta["type"] else None
        if encoding := headers.get("Content-Encoding"):
            meta["encoding"] = encoding
        if digest := headers.get(TARGET_HEADER) or recorder.digest or headers.get(RELEASE_HEADER):
            meta["digest"] = digest[:MOST_HEADER]
        if release := headers.get(RELEASE_HEADER):
            meta["release"] = release[:MOST_HEADER]
        if sampling := backend.sampling or recorder.sampling:
            meta["sampling"] = dict(sampling)
        self._spoke = time.perf_counter()

    def asks_again(self, answer: bytes) -> bool:
        if not self._asks or self._meta["status"] not in (400, 422) or ASKED.strip(b'"') not in answer:
            return False
        self._asks, self.body, self._was_refused = False, self._request, True  # it may be the request's own mistake
        return True

    def whole(self, answer: bytes) -> bytes:
        self._parts, self._bytes = [answer], self._bytes + len(answer)
        self.ends()
        return without_ids(answer) if self._asks and "encoding" not in self._meta else answer

    def part(self, data: bytes) -> None:
        if not self._parts:
            self._meta["ttft_ms"] = round((self._spoke - self._began) * 1_000, 3)
        self._bytes += len(data)
        if self._bytes <= MOST_BYTES:
            self._parts.append(data)
        if (self._end is not None and self._end.seen(data)) or self._bytes - self._request_bytes == self._length:
            self.ends()

    def ends(self, problem: str = "") -> None:
        if self._over:
            return
        self._over = True
        if "status" not in self._meta:
            self._recorder.left_out["unanswered"] += 1
            return
        self._meta["latency_ms"] = round((time.perf_counter() - self._began) * 1_000, 3)
        if problem:
            self._meta["problem"] = problem
        if self._bytes > MOST_BYTES:
            self._recorder.journal.lose("too_long")
        else:
            self._recorder.journal.append(self._meta, self._request, self._parts)
        self._parts = []

    def refused(self, status: int, why: str) -> None:
        self._meta.update(status=status, type="")
        self.ends(why)


def _session(headers: Mapping[str, str], body: bytes) -> str | None:
    """The session that the record will name, so that a sample holds all of a session."""
    if named := headers.get(SESSION_HEADER):
        return named
    try:
        said = json.loads(plain(body, headers.get("Content-Encoding") or ""))
    except (Unreadable, ValueError, RecursionError):  # no record comes of it
        return None
    return user_and_session(said)[1] if isinstance(said, dict) else None


HEAD, TAIL = 512, 3
"""Bytes of an unfinished event that are looked at: its begin names it, its end may be half of an empty line."""
_BETWEEN = re.compile(rb"\r?\n\r?\n|\r\r")
_LAST = {
    "chat": re.compile(rb"(?m)^data: ?\[DONE\]"),
    "messages": re.compile(rb'(?m)^event: ?message_stop\s*$|"type"\s*:\s*"message_stop"'),
    "responses": re.compile(
        rb"(?m)^event: ?response\.(?:completed|incomplete|failed)\s*$"
        rb'|"type"\s*:\s*"response\.(?:completed|incomplete|failed)"'
    ),
}
_DONE = b"data: [DONE]"


class StreamEnd:
    """Of one answer. form: the API, as in recorder.CAPTURED."""

    def __init__(self, form: str):
        self._form, self._last, self._open = form, _LAST[form], b""

    def seen(self, part: bytes) -> bool:
        """Whether the stream's last event is whole with this part."""
        *whole, self._open = _BETWEEN.split(self._open + part)
        if any(self._last.search(event[:HEAD]) for event in whole):
            return True
        if len(self._open) > HEAD + TAIL:
            self._open = self._open[:HEAD] + self._open[-TAIL:]
        return self._form == "chat" and self._open.strip() == _DONE  # some servers end without an empty line


ASKED = b'"return_token_ids"'
_BEGINS = re.compile(rb"\s*\{(?=\s*\")")
_IDS = re.compile(rb',\s*"(?:prompt_)?token_ids"\s*:\s*(?:\[[\d,\s]*\]|null)')


def asking(body: bytes) -> bytes | None:
    """The body with the request for ids, or None: it names return_token_ids itself, is no JSON object, or asks for `echo`,
    whose answer would change."""
    begin = _BEGINS.match(body)
    if begin is None or ASKED in body or b'"echo"' in body:
        return None
    return b"%s%s:true,%s" % (body[: begin.end()], ASKED, body[begin.end() :])


def without_ids(answer: bytes) -> bytes:
    """The answer without `token_ids` and `prompt_token_ids`. Both follow other keys wherever vLLM writes them."""
    return _IDS.sub(b"", answer)
