"""Progress of the current step: a bar on a terminal, an occasional line when output goes to a file.

    with StepProgress(console) as shown:
        shown.begin("sft_model")
        shown.waits_for("loading the model and its data")
        shown.hear(event)                    # a worker's progress event
        shown.look()                         # call often: without a terminal, prints a line when one is due
        shown.end()

A log file or a pipe gets a line after 30 seconds of a step, then at doubling intervals of at most 10 minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from model_ops.backoff import Backoff
from model_ops.wording import duration
from resources.launching.pace import Pace

FIRST_LINE_SECONDS, LONGEST_PAUSE_SECONDS = 30.0, 600.0
STEP, BAR, WITH_BAR, SHORTEST = 20, 16, 100, 8
"""Columns of a step's name and of the bar, of a terminal that is wide enough for a bar, and of a phase that is cut."""
AROUND = 12
"""Columns of the spinner, of the time, and between the parts of a line."""


class StepProgress:
    """Shows one step at a time. clock: time in seconds."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic):
        self._console, self._clock = console, clock
        self._pace = Pace()
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
        self._pace, self._step, self._phase = Pace(), step, "starting"
        self._began = self._clock()
        self._next_line.reset()
        self._next_line.begin()
        self._task = self._bars.add_task(self._phase, step=step, total=None)

    def waits_for(self, phase: str) -> None:
        """Shows what the step is doing before its operation reports progress."""
        if self._task is not None:
            self._pace, self._phase = Pace(), phase
            self._bars.update(self._task, description=self._fitting([phase]), completed=0, total=None)

    def hear(self, event: dict[str, Any]) -> None:
        """Shows a progress event of the step's worker."""
        if self._task is None:
            return
        self._pace.hear({"at": self._clock(), **event})
        self._bars.update(self._task, completed=event["done"], total=event["total"] or None, description=self._fitting(
            [event["phase"], self._pace.how_far(), *self._pace.how_fast()]))

    def _fitting(self, parts: Sequence[str]) -> str:
        """As many parts, from the first on, as the line has room for; a first one that leaves the second none ends in "…"."""
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
        self._console.print(f"  {self._step}, {duration(self._clock() - self._began)}: {how}", style="dim", markup=False,
                            highlight=False, soft_wrap=True)
        self._next_line.begin()

    def end(self) -> None:
        """Removes the step."""
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None
