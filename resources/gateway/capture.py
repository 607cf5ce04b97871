"""The capture layer around a front: journal, shipper, feedback, status.

GET /capture/status says what was kept, what was not and why, what waits for the store, and whether the store takes objects.
`News` says it to the log: once when trouble begins, and once when it is over."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from model_ops.machine import Backoff, pipe_of
from resources.digests import unkeyed_sentence
from resources.gateway.front import EVERYWHERE, Front, FrontError, Handler
from resources.gateway.journal import (
    JOURNAL_BYTES,
    OPEN,
    READY,
    SEGMENT_S,
    STATUS,
    CaptureError,
    DiskStore,
    Journal,
    make_ready,
    open_store,
    segments,
)
from resources.gateway.keys import KeyRules
from resources.gateway.pass_through import error_response
from resources.gateway.recorder import CAPTURED, CREDENTIALS, TrafficRecorder
from resources.gateway.routes import Backend, Route
from resources.launching import child_environment, python_module
from stores.in_use import InUse, taken

ABOUT = dict.fromkeys(("id", "response_id", "request_id"), "response_id")
ABOUT |= {"trace_id": "trace_id", "session_id": "session_id"}
TEXTS = ("name", "label", "comment", "source")
MOST_BYTES = 256 << 10
MOST_ID = 1_024


class FeedbackError(Exception):
    """A body that is no feedback; the message says what is missing."""


class FeedbackDoor:
    """Answers POST /feedback: what people or graders say about an answer, kept beside the traffic. written: how many so far.

        {"id": "chatcmpl-123", "name": "thumbs", "value": "down", "comment": "it ran in circles"}

    id: of the answer (its own id, or the X-Request-Id of its request); instead of it session_id or trace_id. value: a number, a
    word such as up or down, true or false. name, comment, label, source: texts, and optional. Feedback about an id that was
    never seen is kept too: ingest says in `feedback.tie` what it belongs to."""

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


TICKS_EVERY_S, NEWS_EVERY_S = 1.0, 5.0
LAST_SHIPMENT_S = 30.0


@dataclass(frozen=True)
class CaptureSettings:
    store: str
    """Directory or s3:// prefix of the objects."""
    journal: Path | None = None
    """A local directory; None: `default_journal`."""
    rules: KeyRules = field(default_factory=KeyRules)
    ask_for_ids: bool = False
    segment_s: float = SEGMENT_S
    """Age at which a segment is shipped."""
    journal_bytes: int = JOURNAL_BYTES
    """Most that may wait."""
    digest: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """`ask_for_ids`, `digest`, `sampling`: see TrafficRecorder."""


class Capture:
    """A block in which traffic is captured. Raises CaptureError on entering if the journal cannot be written or is used by
    another process, and for a store that is none. A store that is away is no error: the journal holds what is captured."""

    def __init__(self, settings: CaptureSettings, say: Callable[[str], None] = lambda _: None):
        """say: gets a sentence when trouble of the store or the journal begins, and when it is over."""
        self.settings, self._say = settings, say
        self.store = open_store(settings.store)
        self.journal_directory = (settings.journal or default_journal(settings.store)).expanduser().absolute()
        self._ended = threading.Event()

    def __enter__(self) -> Capture:
        with ExitStack() as stack:
            self._take_journal(stack)
            for left in segments(self.journal_directory, OPEN):  # of a process that was killed: the lock is ours
                make_ready(left)
            self._run = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}-{os.urandom(3).hex()}"
            settings = self.settings
            self.journal = Journal(self.journal_directory, self._run, settings.journal_bytes, segment_s=settings.segment_s)
            self.recorder = TrafficRecorder(
                self.journal, settings.rules, settings.ask_for_ids, settings.digest, settings.sampling
            )
            self._feedback = FeedbackDoor(self.journal, settings.rules)
            self._shipper, self._restarts = self._start_shipper(), 0
            self._ticking = threading.Thread(target=self._tick, name="capture", daemon=True)
            self._ticking.start()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Ships what is ready, within LAST_SHIPMENT_S; the next start ships what is left."""
        self._ended.set()
        self._ticking.join()
        self.journal.close()
        try:
            pipe_of(self._shipper.stdin).close()
            self._shipper.wait(LAST_SHIPMENT_S)
        except subprocess.TimeoutExpired:
            self._shipper.kill()
            self._shipper.wait()
        finally:
            self._open.close()

    @property
    def left(self) -> int:
        """Segments that are in the journal and not in the store."""
        return len(segments(self.journal_directory, READY))

    @property
    def answers(self) -> dict[str, Handler]:
        """What the front answers itself."""
        return {"POST /feedback": self._feedback.answer, "GET /capture/status": self._status}

    def status(self) -> dict[str, Any]:
        """Counts since this process started; of the shipper, since it was started."""
        shipped = self._shipped()
        waiting = segments(self.journal_directory, READY)
        return {
            "captured_paths": sorted(CAPTURED),
            "kept": self.journal.written - self._feedback.written,
            "feedback": self._feedback.written,
            "not_kept": dict(self.journal.lost),
            "left_out": dict(self.recorder.left_out),
            "asks_for_token_ids": self.recorder.ask_for_ids,
            "waiting": {"bytes": self.journal.waiting_bytes, "segments": len(waiting), "most_bytes": self.journal.most_bytes},
            "store": {
                "place": self.store.place,
                "problem": shipped.get("problem", ""),
                "records": shipped.get("records", 0),
                "segments": shipped.get("segments", 0),
                "unreadable": shipped.get("unreadable", {}),
                "seconds_since_last": round(time.time() - shipped["last_at"], 1) if shipped.get("last_at") else None,
                "shipper_restarts": self._restarts,
            },
        }

    def _shipped(self) -> dict[str, Any]:
        """What the shipper says of itself; {} before it did."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.journal_directory / STATUS).read_text())
        return {}

    async def _status(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(self.status())

    def _take_journal(self, stack: ExitStack) -> None:
        directory = self.journal_directory
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            stack.enter_context(taken(directory))
            (directory / f".probe-{os.getpid()}").touch()
            (directory / f".probe-{os.getpid()}").unlink()
        except InUse as error:
            raise CaptureError(f"another process captures into the journal {directory}: give each its own --journal") from error
        except OSError as error:
            why = f"cannot be written ({error.strerror}): give another --journal"
            raise CaptureError(f"the journal {directory} {why}") from error

    def _start_shipper(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            python_module("resources.gateway.shipper", str(self.journal_directory), self.store.place, self._run),
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )

    def _tick(self) -> None:
        """Closes old segments, and starts the shipper again if it ended, after 1, 2, 4, ... 60 seconds."""
        backoff = Backoff()
        news, tell_at = News(self.store.place), time.monotonic() + NEWS_EVERY_S
        while not self._ended.wait(TICKS_EVERY_S):
            self.journal.tick()
            if time.monotonic() >= tell_at:
                tell_at = time.monotonic() + NEWS_EVERY_S
                for sentence in news.of(self._shipped().get("problem", ""), sum(self.journal.lost.values())):
                    self._say(sentence)
            if self._shipper.poll() is not None and backoff.is_over:
                self._shipper, self._restarts = self._start_shipper(), self._restarts + 1
                backoff.begin()


def default_journal(place: str) -> Path:
    """In the store's directory, where ingest does not look; for a bucket, below MILLRACE_HOME or ~/.millrace."""
    store = open_store(place)
    if isinstance(store, DiskStore):
        return Path(store.place) / ".journal"
    home = Path(os.environ.get("MILLRACE_HOME") or Path.home() / ".millrace")
    return home / "capture" / hashlib.sha256(store.place.encode()).hexdigest()[:12]


class News:
    """place: the store's."""

    def __init__(self, place: str):
        self._place, self._problem, self._lost, self._is_losing = place, "", 0, False

    def of(self, problem: str, lost: int) -> list[str]:
        """Sentences since the last call. problem: why the store took nothing; "" if it did. lost: exchanges that were lost
        since the start."""
        sentences = []
        if bool(problem) != bool(self._problem):
            stands = f"takes no objects ({problem}): they wait in the journal" if problem else "takes objects again"
            sentences.append(f"{self._place} {stands}")
        is_losing = lost > self._lost
        if is_losing != self._is_losing:
            again = f"exchanges are kept again; {lost:,} were not since the start"
            sentences.append("exchanges are not kept now: /capture/status says how many and why" if is_losing else again)
        self._problem, self._lost, self._is_losing = problem, lost, is_losing
        return sentences


SWITCH_INTERVAL_S = 0.0005


def run_capture(to: str, settings: CaptureSettings, host: str, port: int, drain_s: float, say: Callable[[str], None]) -> None:
    """Captures until it is interrupted. Raises CaptureError for addresses that cannot be used. A request that the server took
    is sent once: it may be what ended the server, or its work may be paid."""
    require_another_server(to, host, port)
    backend = Backend(server_url(to), "", sampling=settings.sampling)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with Capture(settings, say) as capture:
        try:
            with Front(host, port, drain_s, capture.recorder, capture.answers, passes=("/",), most_sent=1) as front:
                front.switch([Route(backend)])
                say(
                    f"captures what {front.url} passes on to {backend.url}, into {capture.store.place} "
                    f"(journal: {capture.journal_directory})"
                )
                if unkeyed := unkeyed_sentence():
                    say(unkeyed)
                try:
                    threading.Event().wait()
                except KeyboardInterrupt:
                    if backend.in_flight:
                        say(
                            f"ends when {backend.in_flight} requests in flight are answered, after {drain_s:g} s at most; "
                            "Ctrl-C again ends at once"
                        )
        except FrontError as error:
            raise CaptureError(str(error)) from error
    if capture.left:
        say(
            f"{capture.left} segments are not in the store yet: they lie in {capture.journal_directory}, and the next start "
            "ships them"
        )


def require_another_server(to: str, host: str, port: int) -> None:
    """Raises CaptureError if `to` is the address at which the capture layer listens: it would ask itself for ever."""
    server = urlsplit(server_url(to))
    own = _addresses(host)
    if host in EVERYWHERE:
        own |= {"127.0.0.1", "::1", *_addresses(socket.gethostname())}
    if port and port == (server.port or {"https": 443}.get(server.scheme, 80)) and _addresses(server.hostname or "") & own:
        raise CaptureError(f"--to {to} is the address that this command listens at: name the server's own, or another --port")


def _addresses(host: str) -> set[str]:
    try:
        return {str(address[4][0]) for address in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


def server_url(to: str) -> str:
    """The address to which a request's path is added: clients write /v1, so `to` may end with it. Raises CaptureError."""
    try:
        parts = urlsplit(to)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise CaptureError(f"--to {to!r} is no address of a server such as http://127.0.0.1:8000")
    if parts.username or parts.password:
        raise CaptureError("--to contains credentials: clients send their own key, which is passed on")
    return to.rstrip("/").removesuffix("/v1")
