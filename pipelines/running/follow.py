"""Shows a run on the terminal: steps as they start and finish, progress of the current one, peak memory.

    outcome = follow(submit(recipe, lake), console, budget={"sft_model": 90})

The run is a process of its own, so that Dagster's capture of output does not disturb the terminal. Ctrl-C is passed on once:
workers save a checkpoint, the run is marked as cancelled, and the outcome's exit code is 130.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import psutil
from rich.console import Console

from pipelines.running.outcome import Ended, Outcome
from pipelines.running.step_progress import StepProgress
from pipelines.running.submit import EVENTS, SECONDS_BETWEEN_LOOKS, Run


def follow(run: Run, console: Console, budget: Mapping[str, float] | None = None) -> Outcome:
    """Shows a run until its end."""
    watch = _Watch(run, console, budget or {})
    try:
        outcome = watch.until_the_end(run.folder / EVENTS)
    except BaseException:  # Ctrl-C just before or after watching must stop the run too
        run.stop()
        run.wait()
        raise
    outcome.end(run.poll() or 0, run.log, watch.is_stopping)
    return outcome


class Watched(Protocol):
    """The parts of a run that following needs."""

    @property
    def pid(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def stop(self) -> None: ...


class _Watch:
    def __init__(self, run: Watched, console: Console, budget: Mapping[str, float]):
        self._run, self._console, self._budget = run, console, budget
        self._outcome = Outcome()
        self.is_stopping = False
        self._shown = StepProgress(console)

    def until_the_end(self, events: Path) -> Outcome:
        stop_memory = threading.Event()
        memory = threading.Thread(target=self._watch_memory, args=(stop_memory,), daemon=True)
        memory.start()
        partial = ""
        with events.open() as lines, self._shown:
            while True:
                running = self._run.poll() is None
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
        return self._outcome

    def _interrupt(self) -> None:
        if self.is_stopping:
            self._console.print("[yellow]Still saving. Kill the process to lose what it has not saved.")
            return
        self.is_stopping = True
        self._console.print("[yellow]Stopping: the step saves its state first. Run again to continue.")
        self._run.stop()

    def _show(self, event: dict[str, Any]) -> None:
        ended = self._outcome.hear(event)
        kind = event["event"]
        if ended is not None:
            self._show_end(ended)
        elif kind == "step":
            self._shown.begin(event["step"])
        elif kind == "progress":
            self._shown.hear(event)
        elif kind == "phase":
            self._shown.waits_for(event["phase"])
        elif kind == "check":
            mark = "[green]passed" if event["passed"] else "[red]FAILED"
            self._console.print(f"  [dim]check {event['check']}: {mark}")
        elif kind == "note":
            self._console.print(event["message"], style="dim", markup=False, highlight=False)
        elif kind == "warning":
            self._console.print(f"! {event['message']}", style="yellow", markup=False, highlight=False, soft_wrap=True)

    def _show_end(self, ended: Ended) -> None:
        self._shown.end()
        step, seconds = ended.step, f"{ended.seconds:7.1f} s"
        if ended.state == "finished" and ended.reused is not None:
            self._console.print(f"[green]✓[/] {step:<22} {_how_reused(ended.reused)}", highlight=False, soft_wrap=True)
        elif ended.state == "finished":
            budget = f" of about {self._budget[step]:.0f} s" if step in self._budget else ""
            self._console.print(f"[green]✓[/] {step:<22} {seconds}[dim]{budget}")
        elif ended.state == "stopped":
            self._console.print(f"[yellow]‖[/] {step:<22} {seconds}  stopped; its state is saved")
        else:
            self._console.print(f"[red]✗[/] {step:<22} {seconds}")

    def _watch_memory(self, stop: threading.Event) -> None:
        while not stop.wait(0.5):
            pid = self._run.pid
            total = 0.0 if pid is None else _tree_memory_mb(pid)
            self._outcome.peak_memory_mb = max(self._outcome.peak_memory_mb, total)
            step = self._outcome.current_step
            if step is not None:
                peaks = self._outcome.step_peak_memory_mb
                peaks[step] = max(peaks.get(step, 0.0), total)


def _how_reused(event: Mapping[str, Any]) -> str:
    """`reused (made 2026-11-21 10:03 UTC, run 1a2b3c4d)`, as far as known."""
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

