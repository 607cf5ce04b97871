"""Keeps servers running until it is asked to stop: restarts what ends, after pauses that grow from 1 s to 60 s. A server that
ends is reported once, with its last lines; one that keeps ending once more, and again when it runs."""

import json
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_ops.files import write_json
from model_ops.machine import Backoff
from pipelines.keeping.managed_process import ManagedProcess, RotatedLog
from resources.launching import is_same_process
from resources.records import visible

FOLDER, STATE = "up", "state.json"


@dataclass(frozen=True)
class ServerState:
    name: str
    process: str
    """Stamp of its process (resources/launching/processes.py); "" while it does not run."""
    since: str
    """When it started or ended, ISO 8601."""
    restarts: int
    """Number of restarts."""
    why_not: str
    """Why it does not run now, or why it ended last."""
    log: str
    """Path of its log."""

    @property
    def is_running(self) -> bool:
        return bool(self.process) and is_same_process(self.process)

    @property
    def pid(self) -> int | None:
        return int(self.process.partition("@")[0]) if self.process else None


@dataclass(frozen=True)
class UpState:
    process: str
    """Stamp of `millrace up` itself."""
    host: str
    """The machine it ran on."""
    since: str
    lake: str
    servers: tuple[ServerState, ...] = ()
    ui: str = ""
    """Address of its webserver there."""

    @property
    def is_running(self) -> bool:
        return self.host == socket.gethostname() and is_same_process(self.process)

    def pid_of(self, name: str) -> int | None:
        """The process of a server; None while it does not run."""
        return next((server.pid for server in self.servers if server.name == name and server.is_running), None)

    @property
    def all_run(self) -> bool:
        """Whether `millrace up` and all its servers run."""
        return self.is_running and all(server.is_running for server in self.servers)


def now() -> str:
    """The time in UTC, as the state shows it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def folder_of(home: Path) -> Path:
    """The folder of state, workspace and logs in a DAGSTER_HOME."""
    return home / FOLDER


def write_state(home: Path, state: UpState) -> None:
    write_json(folder_of(home) / STATE, asdict(state))


def read_state(home: Path) -> UpState | None:
    """The state last written; None if there is none or it cannot be read."""
    try:
        content: dict[str, Any] = json.loads((folder_of(home) / STATE).read_text(encoding="utf-8"))
        return UpState(**{**content, "servers": tuple(ServerState(**server) for server in content["servers"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def shown_state(state: UpState) -> dict[str, Any]:
    """The state for programs: what --check --format json prints."""
    servers = []
    for server in state.servers:
        shown = asdict(server) | {"running": server.is_running, "pid": server.pid}
        del shown["process"]
        servers.append(shown | ({"why_not": ""} if server.is_running else {}))
    shown = {name: value for name, value in asdict(state).items() if name in ("lake", "host", "since")}
    return shown | {"running": state.is_running, "pid": int(state.process.partition("@")[0]), "servers": servers}


FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_S = 120.0
"""A server that ran so long counts as running: its pauses are short again. A start may take a minute on a busy machine."""
TOLD_AGAIN = 5
"""Ends in a row after which a server is reported a second time."""
LOOKS_EVERY_S = 0.25
SIGNALS = 128
"""Exit codes above this are of processes that a signal ended."""
SHOWN_LINES, LONGEST_LINE = 3, 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Server:
    """What to keep running."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    stop_s: float = 20.0
    """Seconds that it has to end."""
    held: Sequence[int] = ()
    """Locks, as ManagedProcess."""
    ends_first: Callable[[int, Callable[[], bool]], object] | None = None
    """Called before the server is stopped, with its process and a function that says whether it has to be quick."""
    may_run: Callable[[], str] = lambda: ""
    """Why the server may not run now; "" if it may."""


@dataclass
class _ServerRun:
    server: Server
    process: ManagedProcess
    log: RotatedLog
    began_s: float = 0.0
    ends_in_a_row: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S))
    starts: int = 0
    since: str = field(default_factory=now)
    why_not: str = "it was not started yet"
    waiting_reason: str = ""


class Keeper:
    """Not for several threads. say: gets sentences for a person; changed: called after every change of state."""

    def __init__(self, servers: Sequence[Server], say: Callable[[str], None], changed: Callable[[], None]):
        self._say, self._changed = say, changed
        self._runs = []
        for server in servers:
            log = RotatedLog(server.log)
            self._runs.append(_ServerRun(server, ManagedProcess(server.command, server.environment, log, server.held), log))

    def states(self) -> tuple[ServerState, ...]:
        """What runs, in the order in which it was named."""
        return tuple(
            ServerState(
                run.server.name,
                run.process.stamp if run.process.is_running else "",
                run.since,
                max(0, run.starts - 1),
                run.why_not,
                str(run.server.log),
            )
            for run in self._runs
        )

    def run(self, stop: threading.Event, hurry: threading.Event | None = None) -> None:
        """Returns when `stop` is set and all servers have ended. hurry: set to end them without waiting."""
        try:
            while not stop.is_set():
                for run in self._runs:
                    if not stop.is_set():
                        self._look(run)
                stop.wait(LOOKS_EVERY_S)
        finally:
            self._end(hurry or threading.Event())

    def _look(self, run: _ServerRun) -> None:
        if (reason := run.server.may_run()) or run.waiting_reason:
            self._wait(run, reason)
            if reason:
                return
        if run.process.is_running:
            if run.ends_in_a_row.count and time.monotonic() - run.began_s > STEADY_S:
                self._say(f"{run.server.name} runs again")
                run.ends_in_a_row.reset()
            return
        if run.starts and not run.why_not:
            self._ended(run)
        if run.ends_in_a_row.is_over:
            self._start(run)

    def _start(self, run: _ServerRun) -> None:
        try:
            run.process.start()
        except OSError as error:  # no memory, too many processes or files
            run.log.write(f"it cannot be started: {error.strerror}")
            run.starts += 1
            self._failed(run, f"cannot be started ({error.strerror})", "")
            return
        run.began_s, run.since, run.why_not = time.monotonic(), now(), ""
        run.starts += 1
        self._changed()

    def _ended(self, run: _ServerRun) -> None:
        code = run.process.exit_code() or 0
        why = "" if code > SIGNALS else _quoted(run.log.last_lines())  # who is killed does not say why
        if time.monotonic() - run.began_s > STEADY_S:
            run.ends_in_a_row.reset()
        self._failed(run, f"ended {_how(code)}", why)

    def _failed(self, run: _ServerRun, what: str, why: str) -> None:
        """Sets the pause before the next start, and tells it once or twice. what: as `ended with exit code 3`."""
        run.ends_in_a_row.begin()
        run.why_not = f"it {what}{why}"
        run.since = now()
        if run.ends_in_a_row.count == 1:
            self._say(f"{run.server.name} {what} and is started again{why}")
        elif run.ends_in_a_row.count == TOLD_AGAIN:
            self._say(
                f"{run.server.name} {what}, the {TOLD_AGAIN}th time in a row, and is started again after pauses of up "
                f"to {LONGEST_PAUSE_S:g} s{why} (log: {run.server.log})"
            )
        self._changed()

    def _wait(self, run: _ServerRun, reason: str) -> None:
        if reason and run.process.is_running:
            self._end_one(run, run.server.stop_s)
        if reason == run.waiting_reason:
            return
        run.waiting_reason, run.since = reason, now()
        if reason:
            run.why_not = reason
            self._say(f"{run.server.name} does not run here: {reason}")
        self._changed()

    def _end(self, hurry: threading.Event) -> None:
        for run in reversed(self._runs):
            self._end_one(run, run.server.stop_s, hurry)
            run.since, run.why_not = now(), "it was stopped"
            self._changed()

    def _end_one(self, run: _ServerRun, seconds: float, hurry: threading.Event | None = None) -> None:
        pid = run.process.pid
        hurried = hurry.is_set if hurry is not None else lambda: False
        if run.process.is_running:
            if run.server.ends_first is not None and pid is not None:
                run.server.ends_first(pid, hurried)
            run.process.ask_to_stop()
            until = time.monotonic() + seconds
            while run.process.is_running and time.monotonic() < until and not hurried():
                time.sleep(0.1)
        run.process.stop(0)


def _how(code: int) -> str:
    if code > SIGNALS:
        with suppress(ValueError):  # no signal has this number
            return f"by {signal.Signals(code - SIGNALS).name}"
    return f"with exit code {code}"


def _quoted(lines: Sequence[str]) -> str:
    said = [visible(_COLOUR.sub("", line).strip())[:LONGEST_LINE] for line in lines if line.strip()][-SHOWN_LINES:]
    return f"; its last lines: {' | '.join(said)}" if said else ""
