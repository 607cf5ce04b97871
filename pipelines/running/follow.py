"""Following a run from the terminal: steps as they start and finish, how far the one at work is, peak memory.

    outcome = follow(RunRequest(...), console, budget={"sft_model": 90})

The run is a process of its own (`python -m pipelines.running.run`), so that Dagster's capture of output does not fight with the
terminal. Ctrl-C is passed on once: workers save a checkpoint, the run is marked as cancelled, and this returns 130.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from pipelines.running.step_progress import StepProgress
from pipelines.storage.storage_errors import StorageError, require_writable
from resources.launching.killed import killed_sentence, memory_sentence
from resources.launching.python_process import child_environment, python_module

SECONDS_BETWEEN_LOOKS = 0.2
EVENT_LINE = re.compile(r"\S*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+ - dagster")
"""How a line of Dagster's own log begins, colour or not."""


@dataclass
class Outcome:
    """How a run ended. Seconds by step; memory is the peak of the whole process tree."""

    exit_code: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    peak_memory_mb: float = 0.0
    step_peak_memory_mb: dict[str, float] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    reused: set[str] = field(default_factory=set)
    """Steps that found their artefact finished by an earlier run: their seconds are no time of making it."""


def follow(request: Mapping[str, Any], console: Console, budget: Mapping[str, float] | None = None) -> Outcome:
    """Starts a run, shows it, and waits for its end."""
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        events = Path(folder) / "progress.jsonl"
        events.touch()
        log = Path(folder) / "run.log"
        with log.open("w") as chatter:
            process = subprocess.Popen(
                python_module("pipelines.running.run", json.dumps(request, default=str)),
                env=child_environment(MILLRACE_PROGRESS=str(events), PYTHONUNBUFFERED="1"),
                stdin=subprocess.DEVNULL,
                stdout=chatter,
                stderr=chatter,
                start_new_session=True,
            )
        watch = _Watch(process, console, budget or {})
        try:
            outcome = watch.until_the_end(events)
        except BaseException:  # Ctrl-C in the moments around the watching: the run must not go on unseen
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        if outcome.exit_code not in (0, 130) and not outcome.messages:
            outcome.messages.append(_unsaid(process.returncode, log, outcome, watch.step))
        return outcome


class _Watch:
    def __init__(self, process: subprocess.Popen[bytes], console: Console, budget: Mapping[str, float]):
        self._process, self._console, self._budget = process, console, budget
        self._outcome = Outcome()
        self._started: dict[str, float] = {}
        self._current: str | None = None
        self._stopping = False
        self._shown = StepProgress(console)
        self._reused: dict[str, dict[str, Any]] = {}

    def until_the_end(self, events: Path) -> Outcome:
        stop_memory = threading.Event()
        memory = threading.Thread(target=self._watch_memory, args=(stop_memory,), daemon=True)
        memory.start()
        partial = ""
        with events.open() as lines, self._shown:
            while True:
                running = self._process.poll() is None
                try:
                    *whole, partial = (partial + lines.read()).split("\n")
                    for line in whole:
                        self._show(json.loads(line))
                    self._shown.look()
                    if not running:
                        break
                    time.sleep(SECONDS_BETWEEN_LOOKS)
                except KeyboardInterrupt:
                    self._interrupt()
        stop_memory.set()
        memory.join()
        code = self._process.returncode
        if self._stopping and code == -signal.SIGINT:
            code = 130  # it was stopped before it could listen to Ctrl-C
        self._outcome.exit_code = code if code >= 0 else 1
        return self._outcome

    @property
    def step(self) -> str | None:
        """The step that is running, or was when the run ended."""
        return self._current

    def _interrupt(self) -> None:
        if self._stopping:
            self._console.print("[yellow]Still saving. Kill the process to lose what it has not saved.")
            return
        self._stopping = True
        self._console.print("[yellow]Stopping: the step saves its state first. Run again to continue.")
        self._process.send_signal(signal.SIGINT)

    def _show(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "step":
            self._show_step(event)
        elif kind == "progress":
            self._shown.hear(event)
        elif kind == "phase":
            self._shown.waits_for(event["phase"])
        elif kind == "reused":
            self._reused[event["step"]] = event
        elif kind == "check":
            mark = "[green]passed" if event["passed"] else "[red]FAILED"
            self._console.print(f"  [dim]check {event['check']}: {mark}")
            if not event["passed"]:
                self._outcome.messages.append(f"{event['step']}: the check {event['check']} did not pass")
        elif kind == "refused":
            self._outcome.messages.append(event["message"])
        elif kind == "note":
            self._console.print(event["message"], style="dim", markup=False, highlight=False)
        elif kind == "warning":
            self._console.print(f"! {event['message']}", style="yellow", markup=False, highlight=False, soft_wrap=True)

    def _show_step(self, event: dict[str, Any]) -> None:
        step, state = event["step"], event["state"]
        if state == "started":
            self._started[step] = event["at"]
            self._current = step
            self._shown.begin(step)
            return
        self._current = None
        seconds = event["at"] - self._started.get(step, event["at"])
        self._outcome.seconds[step] = self._outcome.seconds.get(step, 0.0) + seconds
        budget = f" of {self._budget[step]:.0f} s" if step in self._budget else ""
        self._shown.end()
        reused = self._reused.pop(step, None)
        if state == "finished" and reused is not None:
            self._outcome.reused.add(step)
            self._console.print(f"[green]✓[/] {step:<22} {_how_reused(reused)}", highlight=False, soft_wrap=True)
        elif state == "finished":
            self._outcome.reused.discard(step)
            self._console.print(f"[green]✓[/] {step:<22} {seconds:7.1f} s[dim]{budget}")
        elif state == "stopped":
            self._console.print(f"[yellow]‖[/] {step:<22} {seconds:7.1f} s  stopped; its state is saved")
        else:
            self._console.print(f"[red]✗[/] {step:<22} {seconds:7.1f} s")
            memory = memory_sentence(self._outcome.step_peak_memory_mb.get(step)) if event.get("killed") else ""
            self._outcome.messages.append(f"{step}: {event.get('message', '')}{memory}")

    def _watch_memory(self, stop: threading.Event) -> None:
        while not stop.wait(0.5):
            total = _tree_memory_mb(self._process.pid)
            self._outcome.peak_memory_mb = max(self._outcome.peak_memory_mb, total)
            if self._current is not None:
                peaks = self._outcome.step_peak_memory_mb
                peaks[self._current] = max(peaks.get(self._current, 0.0), total)


def _how_reused(event: Mapping[str, Any]) -> str:
    """`reused (made 2026-11-21 10:03 UTC, run 1a2b3c4d)`, as far as that is known."""
    facts = []
    if event.get("made_at"):
        made_at = datetime.fromisoformat(event["made_at"])
        facts.append(f"made {made_at.astimezone(UTC) if made_at.tzinfo else made_at:%Y-%m-%d %H:%M} UTC")
    facts += [f"run {event['run'][:8]}"] if event.get("run") else []
    return f"reused ({', '.join(facts)})" if facts else "reused"


def _tree_memory_mb(pid: int) -> float:
    """Resident memory of a process and all its children."""
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    total = 0
    for process in tree:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 2**20


def _unsaid(code: int, log: Path, outcome: Outcome, step: str | None) -> str:
    """Why a run ended that said nothing itself: it was killed, the disk of its messages is full, or it has a bug."""
    if code < 0:
        who = f"{step}: the run's process" if step else "the run's process"
        return killed_sentence(who, signal.Signals(-code).name) + memory_sentence(outcome.peak_memory_mb)
    try:
        require_writable(log.parent)
    except StorageError as error:
        return str(error)
    return f"the run ended with exit code {code}, which is a bug of millrace; please report these lines:\n{_traceback(log)}"


def _traceback(log: Path, lines: int = 40) -> str:
    """The last traceback in what a run printed, without Dagster's log of events; else its last lines."""
    said = log.read_text(errors="replace")
    begin = said.rfind("Traceback (most recent call last)")
    found = said[begin:] if begin >= 0 else "\n".join(line for line in said.splitlines() if not EVENT_LINE.match(line))
    return "\n".join(found.splitlines()[-lines:])
