"""A job for a worker, the base class of all settings, and progress as JSON lines. Assets write the job's JSON file,
`python -m model_ops.worker JOB.json` runs it. This file imports no operation, because the code digest of one must not cover the
settings of the others."""

import json
import signal
import time
from pathlib import Path
from typing import Annotated, Any, Self, TextIO, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from model_ops.jobs.errors import ModelError


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


Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Settings(BaseModel):
    """Settings that a person writes: unknown keys are refused and values are checked when they are read."""

    model_config = ConfigDict(extra="forbid")

    def resolved(self) -> Self:
        """The settings with every missing value filled in. Settings with presets override it; here nothing is missing."""
        return self


Kind = TypeVar("Kind", bound=Settings)
Value = TypeVar("Value")


def filled(value: Value | None) -> Value:
    """A value of resolved settings. Raises ValueError where the settings are not resolved."""
    if value is None:
        raise ValueError("a value of these settings is not filled in: call resolved() first")
    return value


class Job(BaseModel):
    """One operation for one worker. inputs name directories: models (`model`, `teacher`, `target`, `base`, ...) in the Hugging
    Face layout and datasets of Parquet files. `output` is a directory that may hold the unfinished work of a killed worker: the
    operation continues it. `output/.work` is scratch (checkpoints, caches) and is removed once the artefact exists."""

    model_config = ConfigDict(extra="forbid")

    operation: str = Field(description="a name in model_ops.operations.table")
    output: Path
    inputs: dict[str, Path] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    threads: int = Field(2, ge=1, description="CPU threads for torch")

    def settings_as(self, kind: type[Kind]) -> Kind:
        """The settings as an operation's own model; keys that a job by hand leaves out are filled. Raises ValidationError."""
        return TypeAdapter(kind).validate_python(self.settings).resolved()

    def input(self, name: str) -> Path:
        """The directory of an input. Raises ModelError if the job does not name it."""
        if name not in self.inputs:
            raise ModelError(f"job {self.operation} has no input {name!r}; it has {', '.join(self.inputs) or 'none'}")
        return self.inputs[name]
