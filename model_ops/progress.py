"""How an operation tells how far it is, and learns that it should stop.

    progress = Progress(sys.stdout)
    progress.report("train", done=120, total=800, unit="steps", loss=2.1)   # one JSON line, at most two a second
    if progress.stop_requested: ...                                         # set by SIGTERM or SIGINT

Each line holds the event, phase, done, total, unit, rate (units per second since the phase began), eta_s and the
numbers given. The first report of a phase and the one that completes it are always written.
"""

from __future__ import annotations

import json
import signal
import time
from typing import TextIO


class Stopped(Exception):
    """The operation stopped because it was asked to; what it saved lets the same job continue."""


class Progress:
    """Writes progress as JSON lines to `stream` (None: nowhere)."""

    def __init__(self, stream: TextIO | None = None, interval_s: float = 0.5):
        self.stream = stream
        self.interval_s = interval_s
        self.stop_requested = False
        self._phase = ""
        self._began_s = 0.0
        self._began_at = 0.0
        self._written_s = 0.0

    def report(self, phase: str, done: float, total: float, unit: str, **numbers: float) -> None:
        """Says that `done` of `total` units of a phase are finished."""
        now_s = time.monotonic()
        new_phase = phase != self._phase
        if new_phase:
            self._phase, self._began_s, self._began_at = phase, now_s, done
        if not new_phase and done < total and now_s - self._written_s < self.interval_s:
            return
        self._written_s = now_s
        elapsed_s = now_s - self._began_s
        rate = (done - self._began_at) / elapsed_s if elapsed_s > 0 else 0.0
        eta_s = round((total - done) / rate, 1) if rate > 0 else None
        self.event("progress", phase=phase, done=done, total=total, unit=unit, rate=round(rate, 3), eta_s=eta_s,
                   **numbers)

    def event(self, name: str, **fields: object) -> None:
        """Writes one JSON line `{"event": name, ...}` at once. A reader that is gone asks for a stop: whoever started
        this work was killed, and what is done so far should be saved."""
        if self.stream is None:
            return
        try:
            self.stream.write(json.dumps({"event": name, **fields}, ensure_ascii=False) + "\n")
            self.stream.flush()
        except BrokenPipeError:
            self.stream, self.stop_requested = None, True

    def stop_if_requested(self) -> None:
        """Raises Stopped where a stop was asked for; for phases that have nothing to save."""
        if self.stop_requested:
            raise Stopped

    def install_signal_handlers(self) -> None:
        """From now on SIGTERM and SIGINT ask for a stop instead of killing the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request_stop)

    def _request_stop(self, number: int, frame: object) -> None:
        self.stop_requested = True
