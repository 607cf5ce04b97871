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
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from model_ops.wording import duration
from resources.launching.pace import Pace

FIRST_LINE_SECONDS, LONGEST_PAUSE_SECONDS = 30.0, 600.0


class StepProgress:
    """Shows one step at a time. clock: time in seconds."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic):
        self._console, self._clock = console, clock
        self._pace = Pace()
        self._step, self._phase = "", ""
        self._began = self._next_line = 0.0
        self._pause = FIRST_LINE_SECONDS
        self._task: TaskID | None = None
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.fields[step]:<22}"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}", markup=False),
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
        self._began, self._pause = self._clock(), FIRST_LINE_SECONDS
        self._next_line = self._began + self._pause
        self._task = self._bars.add_task(self._phase, step=step, said="", total=None)

    def waits_for(self, phase: str) -> None:
        """Shows what the step is doing before its operation reports progress."""
        if self._task is not None:
            self._pace, self._phase = Pace(), phase
            self._bars.update(self._task, description=phase, completed=0, total=None, said="")

    def hear(self, event: dict[str, Any]) -> None:
        """Shows a progress event of the step's worker."""
        if self._task is None:
            return
        self._pace.hear({"at": self._clock(), **event})
        self._bars.update(self._task, description=event["phase"], completed=event["done"], total=event["total"] or None,
                          said="  ".join([self._pace.how_far(), *self._pace.how_fast()]))

    def look(self) -> None:
        """Writes a progress line when one is due, if the output is no terminal."""
        if self._task is None or self._console.is_terminal or self._clock() < self._next_line:
            return
        how = self._pace.sentence() if self._pace.phase else self._phase if self._phase != "starting" else "working"
        self._console.print(f"  {self._step}, {duration(self._clock() - self._began)}: {how}", style="dim", markup=False,
                            highlight=False, soft_wrap=True)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        self._next_line = self._clock() + self._pause

    def end(self) -> None:
        """Removes the step."""
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None
