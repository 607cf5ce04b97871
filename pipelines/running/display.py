"""Shows a run on the terminal: steps, progress of the current one, peak memory. Progress is a bar on a terminal; a log file or
a pipe gets a line after 30 seconds of a step, then at doubling intervals of at most 10 minutes. Ctrl-C is passed on once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from model_ops.jobs import duration
from model_ops.machine import Backoff
from pipelines.running.outcome import Outcome, StepOutcome
from pipelines.running.submission import EVENTS, SECONDS_BETWEEN_LOOKS, Run
from resources.launching import PhasePace


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


class _Watch:
    def __init__(self, run: Run, console: Console, budget: Mapping[str, float]):
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

    def _show_end(self, ended: StepOutcome) -> None:
        self._shown.end()
        step, seconds = ended.step, f"{ended.seconds:7.1f} s"
        if ended.state == "finished" and ended.reused is not None:
            self._console.print(f"[green]✓[/] {step:<22} {_how_reused(ended.reused)}", highlight=False, soft_wrap=True)
        elif ended.state == "finished":
            budget = f" of about {self._budget[step]:.0f} s" if step in self._budget else ""
            self._console.print(f"[green]✓[/] {step:<22} {seconds}[dim]{budget}")
        elif ended.state == "stopped":
            self._console.print(f"[yellow]‖[/] {step:<22} {seconds}  stopped; the next run goes on with it")
        else:
            self._console.print(f"[red]✗[/] {step:<22} {seconds}")

    def _watch_memory(self, stop: threading.Event) -> None:
        while not stop.wait(0.5):
            pid = self._run.pid
            own, workers = (0.0, 0.0) if pid is None else _memory_mb(pid)
            self._outcome.peak_memory_mb = max(self._outcome.peak_memory_mb, own + workers)
            step = self._outcome.current_step
            if step is not None:
                peaks = self._outcome.step_peak_memory_mb
                peaks[step] = max(peaks.get(step, 0.0), own, workers)


def _how_reused(event: Mapping[str, Any]) -> str:
    """`reused (made 2026-11-21 10:03 UTC, run 1a2b3c4d)`, as far as known."""
    facts = []
    if event.get("made_at"):
        created_at = datetime.fromisoformat(event["made_at"])
        facts.append(f"made {created_at.astimezone(UTC) if created_at.tzinfo else created_at:%Y-%m-%d %H:%M} UTC")
    facts += [f"run {event['run'][:8]}"] if event.get("run") else []
    return f"reused ({', '.join(facts)})" if facts else "reused"


def _memory_mb(pid: int) -> tuple[float, float]:
    memory = [0.0, 0.0]
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for place, tree in enumerate(([root], root.children(recursive=True))):
            for process in tree:
                with suppress(psutil.NoSuchProcess):
                    memory[place] += process.memory_info().rss / 2**20
    return memory[0], memory[1]


FIRST_LINE_SECONDS, LONGEST_PAUSE_SECONDS = 30.0, 600.0
STEP, BAR, WITH_BAR, SHORTEST = 20, 16, 100, 8
"""Columns of a step's name and of the bar, of a terminal that is wide enough for a bar, and of a phase that is cut."""
AROUND = 12
"""Columns of the spinner, of the time, and between the parts of a line."""


class StepProgress:
    """Shows one step at a time. clock: time in seconds."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic):
        self._console, self._clock = console, clock
        self._pace = PhasePace()
        self._step, self._phase = "", ""
        self._began = 0.0
        self._next_line = Backoff(FIRST_LINE_SECONDS, LONGEST_PAUSE_SECONDS, clock)
        self._task: TaskID | None = None
        self._bars = Progress(
            SpinnerColumn(table_column=Column(no_wrap=True)),
            TextColumn("[bold]{task.fields[step]}", table_column=Column(no_wrap=True, min_width=STEP)),
            *([BarColumn(bar_width=BAR)] if console.width >= WITH_BAR else []),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> StepProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, step: str) -> None:
        """Shows a new step instead of the previous one."""
        self.end()
        self._pace, self._step, self._phase = PhasePace(), step, "starting"
        self._began = self._clock()
        self._next_line.reset()
        self._next_line.begin()
        self._task = self._bars.add_task(self._phase, step=step, total=None)

    def waits_for(self, phase: str) -> None:
        """Shows what the step is doing before its operation reports progress."""
        if self._task is not None:
            self._pace, self._phase = PhasePace(), phase
            self._bars.update(self._task, description=self._fitting([phase]), completed=0, total=None)

    def hear(self, event: dict[str, Any]) -> None:
        """Shows a progress event of the step's worker."""
        if self._task is None:
            return
        self._pace.hear({"at": self._clock(), **event})
        description = self._fitting([event["phase"], self._pace.how_far(), *self._pace.how_fast()])
        self._bars.update(self._task, completed=event["done"], total=event["total"] or None, description=description)

    def _fitting(self, parts: Sequence[str]) -> str:
        """As many parts as the line has room for; a first one that leaves the second none ends in "…"."""
        room = self._console.width - AROUND - max(STEP, len(self._step)) - (BAR + 1) * (self._console.width >= WITH_BAR)
        first = max(SHORTEST, room - (len(parts[1]) + 2 if len(parts) > 1 else 0))
        shown = parts[0] if len(parts[0]) <= first else parts[0][: first - 1] + "…"
        for part in parts[1:]:
            if len(shown) + 2 + len(part) > room:
                break
            shown += f"  {part}"
        return shown

    def look(self) -> None:
        """Writes a progress line when one is due, if the output is no terminal."""
        if self._task is None or self._console.is_terminal or not self._next_line.is_over:
            return
        how = self._pace.sentence() if self._pace.phase else self._phase if self._phase != "starting" else "working"
        said = f"  {self._step}, {duration(self._clock() - self._began)}: {how}"
        self._console.print(said, style="dim", markup=False, highlight=False, soft_wrap=True)
        self._next_line.begin()

    def end(self) -> None:
        """Removes the step."""
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None
