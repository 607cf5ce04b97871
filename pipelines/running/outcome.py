"""The outcome of a run, from its events: seconds of each step, reused steps, errors."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipelines.storage import StorageError, require_writable
from resources.launching import killed_sentence, memory_sentence

State = Literal["starting", "running", "succeeded", "failed", "refused", "stopped", "killed"]
"""refused: the request cannot be run. stopped: it was asked to stop, and what it had saved stays. killed: its process is gone
without a message. In all three cases running the recipe again continues."""

INTERRUPTED = 130
"""Exit code of a run that was asked to stop."""
STATES: dict[int, State] = {0: "succeeded", 1: "failed", 2: "refused", INTERRUPTED: "stopped"}
EVENT_LINE = re.compile(r"\S*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+ - dagster")
"""Beginning of a line of Dagster's log, with or without colour."""


@dataclass
class Outcome:
    """The state of a run, finished or not. Seconds by step; memory is the peak of the whole process tree, by step that of the
    run's process or of its workers, whichever is more."""

    exit_code: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    peak_memory_mb: float = 0.0
    step_peak_memory_mb: dict[str, float] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    """Errors, one sentence each."""
    reused: set[str] = field(default_factory=set)
    """Steps whose artefact an earlier run finished; their seconds do not count as time of making it."""
    failed: set[str] = field(default_factory=set)
    """Steps that failed or were stopped. One whose check did not pass is finished: its artefact is there."""
    state: State = "running"
    current_step: str | None = None
    _started: dict[str, float] = field(default_factory=dict, repr=False)
    _reused: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def finished(self) -> list[str]:
        return [step for step in self.seconds if step not in self.failed and step != self.current_step]

    def hear(self, event: Mapping[str, Any]) -> StepOutcome | None:
        """Adds an event. Returns how a step ended, if the event reports that."""
        kind = event["event"]
        if kind == "step" and event["state"] == "started":
            self.current_step = event["step"]
            self._started[event["step"]] = event["at"]
        elif kind == "step":
            return self._step_ended(event)
        elif kind == "reused":
            self._reused[event["step"]] = dict(event)
        elif kind == "check" and not event["passed"]:
            why = event.get("description")
            self.messages.append(f"{event['step']}: the check {event['check']} did not pass{f': {why}' if why else ''}")
        elif kind == "refused":
            self.messages.append(event["message"])
        return None

    def _step_ended(self, event: Mapping[str, Any]) -> StepOutcome:
        step, state = event["step"], event["state"]
        seconds = event["at"] - self._started.get(step, event["at"])
        self.current_step = None
        self.seconds[step] = self.seconds.get(step, 0.0) + seconds
        reused = self._reused.pop(step, None)
        (self.failed.discard if state == "finished" else self.failed.add)(step)
        if state == "finished" and reused is not None:
            self.reused.add(step)
        elif state == "finished":
            self.reused.discard(step)
        elif state != "stopped":
            memory = memory_sentence(self.step_peak_memory_mb.get(step)) if event.get("killed") else ""
            self.messages.append(f"{step}: {event.get('message', '')}{memory}")
        return StepOutcome(step, state, seconds, reused)

    def end(self, code: int, log: Path, asked_to_stop: bool = False) -> None:
        """Adds the exit code of the run's process (below 0: the signal that ended it). log: the process's output."""
        if asked_to_stop and code == -signal.SIGINT:
            code = INTERRUPTED  # it was stopped before it could handle the signal
        self.exit_code = code if code >= 0 else 1
        self.state = "killed" if code < 0 else STATES.get(code, "failed")
        if self.exit_code not in (0, INTERRUPTED) and not self.messages:
            self.messages.append(self._reason(code, log))

    def _reason(self, code: int, log: Path) -> str:
        if code < 0:
            who = f"{self.current_step}: the run's process" if self.current_step else "the run's process"
            return killed_sentence(who, signal.Signals(-code).name) + memory_sentence(self.peak_memory_mb)
        try:
            require_writable(log.parent)
        except StorageError as error:
            return str(error)
        return (
            f"the run ended with exit code {code}, which is a bug of millrace; please report these lines:\n{traceback_in(log)}"
        )


@dataclass(frozen=True)
class StepOutcome:
    """How one step ended."""

    step: str
    state: str
    """Finished, stopped or failed."""
    seconds: float
    reused: Mapping[str, Any] | None = None
    """The run that made its artefact, if this run did not."""


def traceback_in(log: Path, lines: int = 40) -> str:
    """The last traceback in a run's output, without Dagster's event log; else the last lines."""
    printed = log.read_text(errors="replace") if log.exists() else ""
    begin = printed.rfind("Traceback (most recent call last)")
    lines_shown = printed[begin:].splitlines()
    if begin < 0:
        lines_shown = [line for line in printed.splitlines() if not EVENT_LINE.match(line)]
    return "\n".join(lines_shown[-lines:])
