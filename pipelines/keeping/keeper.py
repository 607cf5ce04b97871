"""Keeps servers running until it is asked to stop: restarts what ends, after pauses that grow from 1 s to 60 s.

    keeper = Keeper([Server("webserver", command, environment, log)], say, changed)
    keeper.run(stop)                     # returns when `stop` is set; the servers have ended then, last to first

A server that ends is reported once, with its last lines; one that keeps ending once more, and again when it runs.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from model_ops.machine import Backoff
from pipelines.keeping.kept_process import ManagedProcess, RotatedLog
from pipelines.keeping.up_state import ServerState, now
from resources.records import visible

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
class _Kept:
    server: Server
    process: ManagedProcess
    log: RotatedLog
    began_s: float = 0.0
    ends_in_a_row: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S))
    starts: int = 0
    since: str = field(default_factory=now)
    why_not: str = "it was not started yet"
    told_waiting: str = ""


class Keeper:
    """Not for several threads. say: gets sentences for a person; changed: called after every change of state."""

    def __init__(self, servers: Sequence[Server], say: Callable[[str], None], changed: Callable[[], None]):
        self._say, self._changed = say, changed
        self._kept = []
        for server in servers:
            log = RotatedLog(server.log)
            self._kept.append(_Kept(server, ManagedProcess(server.command, server.environment, log, server.held), log))

    def states(self) -> tuple[ServerState, ...]:
        """What runs, in the order in which it was named."""
        return tuple(
            ServerState(
                kept.server.name,
                kept.process.stamp if kept.process.is_running else "",
                kept.since,
                max(0, kept.starts - 1),
                kept.why_not,
                str(kept.server.log),
            )
            for kept in self._kept
        )

    def run(self, stop: threading.Event, hurry: threading.Event | None = None) -> None:
        """Returns when `stop` is set and all servers have ended. hurry: set to end them without waiting."""
        try:
            while not stop.is_set():
                for kept in self._kept:
                    if not stop.is_set():
                        self._look(kept)
                stop.wait(LOOKS_EVERY_S)
        finally:
            self._end(hurry or threading.Event())

    def _look(self, kept: _Kept) -> None:
        if (reason := kept.server.may_run()) or kept.told_waiting:
            self._wait(kept, reason)
            if reason:
                return
        if kept.process.is_running:
            if kept.ends_in_a_row.count and time.monotonic() - kept.began_s > STEADY_S:
                self._say(f"{kept.server.name} runs again")
                kept.ends_in_a_row.reset()
            return
        if kept.starts and not kept.why_not:
            self._ended(kept)
        if kept.ends_in_a_row.is_over:
            self._start(kept)

    def _start(self, kept: _Kept) -> None:
        try:
            kept.process.start()
        except OSError as error:  # no memory, too many processes or files
            kept.log.write(f"it cannot be started: {error.strerror}")
            kept.starts += 1
            self._failed(kept, f"cannot be started ({error.strerror})", "")
            return
        kept.began_s, kept.since, kept.why_not = time.monotonic(), now(), ""
        kept.starts += 1
        self._changed()

    def _ended(self, kept: _Kept) -> None:
        code = kept.process.exit_code() or 0
        why = "" if code > SIGNALS else _quoted(kept.log.last_lines())  # who is killed does not say why
        if time.monotonic() - kept.began_s > STEADY_S:
            kept.ends_in_a_row.reset()
        self._failed(kept, f"ended {_how(code)}", why)

    def _failed(self, kept: _Kept, what: str, why: str) -> None:
        """Sets the pause before the next start, and tells it once or twice. what: as `ended with exit code 3`."""
        kept.ends_in_a_row.begin()
        kept.why_not = f"it {what}{why}"
        kept.since = now()
        if kept.ends_in_a_row.count == 1:
            self._say(f"{kept.server.name} {what} and is started again{why}")
        elif kept.ends_in_a_row.count == TOLD_AGAIN:
            self._say(
                f"{kept.server.name} {what}, the {TOLD_AGAIN}th time in a row, and is started again after pauses of up "
                f"to {LONGEST_PAUSE_S:g} s{why} (log: {kept.server.log})"
            )
        self._changed()

    def _wait(self, kept: _Kept, reason: str) -> None:
        """Ends a server that may not run, and tells it once."""
        if reason and kept.process.is_running:
            self._end_one(kept, kept.server.stop_s)
        if reason == kept.told_waiting:
            return
        kept.told_waiting, kept.since = reason, now()
        if reason:
            kept.why_not = reason
            self._say(f"{kept.server.name} does not run here: {reason}")
        self._changed()

    def _end(self, hurry: threading.Event) -> None:
        for kept in reversed(self._kept):
            self._end_one(kept, kept.server.stop_s, hurry)
            kept.since, kept.why_not = now(), "it was stopped"
            self._changed()

    def _end_one(self, kept: _Kept, seconds: float, hurry: threading.Event | None = None) -> None:
        pid = kept.process.pid
        hurried = hurry.is_set if hurry is not None else lambda: False
        if kept.process.is_running:
            if kept.server.ends_first is not None and pid is not None:
                kept.server.ends_first(pid, hurried)
            kept.process.ask_to_stop()
            until = time.monotonic() + seconds
            while kept.process.is_running and time.monotonic() < until and not hurried():
                time.sleep(0.1)
        kept.process.stop(0)


def _how(code: int) -> str:
    """How a process ended, as a sentence."""
    if code > SIGNALS:
        with suppress(ValueError):  # no signal has this number
            return f"by {signal.Signals(code - SIGNALS).name}"
    return f"with exit code {code}"


def _quoted(lines: Sequence[str]) -> str:
    """The last lines of a log that say anything."""
    said = [visible(_COLOUR.sub("", line).strip())[:LONGEST_LINE] for line in lines if line.strip()][-SHOWN_LINES:]
    return f"; its last lines: {' | '.join(said)}" if said else ""
