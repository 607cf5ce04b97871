"""Progress events of an operation as JSON lines, and the request to stop that SIGTERM and SIGINT make.

    progress = Progress(sys.stdout)
    progress.report("train", done=120, total=800, unit="steps", loss=2.1)   # one JSON line, at most two a second
    progress.part("rollouts", 3, 8, "prompts", reward=0.4)                  # of a step that takes long
    if progress.stop_requested: ...                                         # set by SIGTERM or SIGINT

Each line holds the event, phase, done, total, unit, rate (units per second since the phase began), eta_s and the numbers
passed. The first and the last report of a phase are always written.
"""

import json
import signal
import time
from typing import Any, TextIO


class Stopped(Exception):
    """The operation stopped on request; the same job continues from what it saved."""


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
        self._part_s = -interval_s
        self._last: dict[str, Any] = {}

    def report(self, phase: str, done: float, total: float, unit: str, **numbers: float) -> None:
        """Reports that `done` of `total` units of a phase are finished."""
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
        self._last = {"phase": phase, "done": done, "total": total, "unit": unit, "rate": round(rate, 3), "eta_s": eta_s}
        self.event("progress", **self._last, **numbers)

    def part(self, name: str, done: int, total: int, unit: str, **numbers: float) -> None:
        """Reports how far the present unit of the phase is: `done` of `total` of its own. Before any phase, one itself."""
        now_s = time.monotonic()
        if not self._last:
            self.report(name, done, total, unit, **numbers)
        elif not done or now_s - self._part_s >= self.interval_s:
            self._part_s = now_s
            self.event("progress", **self._last, part=f"{name} {done:,} of {total:,} {unit}", **numbers)

    def event(self, name: str, **fields: object) -> None:
        """Writes one JSON line `{"event": name, ...}` at once. A broken pipe requests a stop, because the process that started
        this work is gone and the work done so far should be saved."""
        if self.stream is None:
            return
        try:
            self.stream.write(json.dumps({"event": name, **fields}, ensure_ascii=False) + "\n")
            self.stream.flush()
        except BrokenPipeError:
            self.stream, self.stop_requested = None, True

    def stop_if_requested(self) -> None:
        """Raises Stopped if a stop was requested; for phases that have nothing to save."""
        if self.stop_requested:
            raise Stopped

    def install_signal_handlers(self) -> None:
        """Makes SIGTERM and SIGINT request a stop instead of killing the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request_stop)

    def _request_stop(self, number: int, frame: object) -> None:
        self.stop_requested = True
