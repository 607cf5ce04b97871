"""Speed and remaining time of a worker's phase, from its progress events, and their way to the terminal that started the run.

A phase is `starting` until enough was measured after its first report: at least 2 s, and three reports, 2 % of the work or a
minute.
Measuring begins with the first report, since the time before it (compilation, a dry run) does not recur. Rates are over the
last minute, so a slow beginning does not distort the remaining time."""

import json
import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from model_ops.jobs import duration, singular

LEAST_SECONDS = 2.0
LEAST_REPORTS = 3
LEAST_SHARE = 0.02
LONG_SECONDS = 60.0
"""A unit that took longer is enough for a rate."""
WINDOW_SECONDS = 60.0
LEAST_IN_WINDOW = 5
"""Fewest reports in the window, whatever their age: with steps of minutes, a minute has none."""


class PhasePace:
    """The pace of the current phase."""

    def __init__(self) -> None:
        self.phase = ""
        self._event: dict[str, Any] = {}
        self._reports: deque[tuple[float, float]] = deque()
        self._first = (0.0, 0.0)
        self._count = 0

    def hear(self, event: dict[str, Any]) -> None:
        """Adds a progress event; `at` is its time in seconds. A new phase, or a phase that goes back, starts a new
        measurement."""
        at, done = event["at"], event["done"]
        if not self._event or event["phase"] != self.phase or done < self._reports[-1][1]:
            self.phase, self._first, self._count = event["phase"], (at, done), 0
            self._reports.clear()
            self._event = {}
        elif done > self._reports[-1][1]:
            self._count += 1
        self._event = {**self._event, "part": None, **event}  # figures of the last step stand while the next one begins
        if not self._reports or done > self._reports[-1][1]:
            self._reports.append((at, done))
        while len(self._reports) > LEAST_IN_WINDOW and at - self._reports[0][0] > WINDOW_SECONDS:
            self._reports.popleft()

    @property
    def starting(self) -> bool:
        """Whether too little was measured for a rate."""
        if not self._event:
            return True
        seconds, done = self._reports[-1][0] - self._first[0], self._reports[-1][1] - self._first[1]
        total = self._event.get("total") or 0
        enough = self._count >= LEAST_REPORTS or (total > 0 and done >= LEAST_SHARE * total) or seconds >= LONG_SECONDS
        return done <= 0 or seconds < LEAST_SECONDS or not enough

    @property
    def finished(self) -> bool:
        total = self._event.get("total") or 0
        return total > 0 and self._event["done"] >= total

    @property
    def rate(self) -> float | None:
        """Units per second over the window; None while starting, or if no work was done in the window."""
        if self.starting:
            return None
        (began, before), (now, done) = self._reports[0], self._reports[-1]
        return (done - before) / (now - began) if now > began and done > before else None

    @property
    def left_s(self) -> float | None:
        """Seconds that the phase still takes; None if unknown."""
        total, rate = self._event.get("total"), self.rate
        return None if not total or rate is None or self.finished else (total - self._event["done"]) / rate

    def how_far(self) -> str:
        """`120 of 800 steps`, or `120 steps` if the total is unknown, and how far the present one is."""
        done, total, unit = self._event["done"], self._event.get("total"), self._event.get("unit", "")
        unit = singular(unit) if (total or done) == 1 else unit
        far = f"{done:,} of {total:,} {unit}".rstrip() if total else f"{done:,} {unit}".rstrip()
        return f"{far}, {self._event['part']}" if self._event.get("part") else far

    def how_fast(self) -> list[str]:
        """The other figures, most important first: time left, loss or grades, speed, utilisation."""
        event, said = self._event, []
        if self.finished:
            said.append("finishing")
        elif self.left_s is not None:
            said.append(f"{duration(self.left_s)} left")
        elif self.starting:
            said.append("starting")
        if event.get("loss") is not None:
            said.append(f"loss {event['loss']:.3f}")
        if event.get("pass_rate") is not None:
            said.append(f"pass rate {event['pass_rate']:z.0%}")
        if event.get("reward") is not None:
            said.append(f"mean grade {event['reward']:z.2f}")
        if event.get("sampled_per_second"):
            said.append(f"{event['sampled_per_second']:,.0f} sampled tokens/s")
        if self.starting:
            return said
        if event.get("tokens_per_second"):
            said.append(f"{event['tokens_per_second']:,.0f} tokens/s")
            said += [f"MFU {event['mfu']:z.0%}"] if event.get("mfu") else []
        elif self.rate is not None:
            said.append(_speed(self.rate, event.get("unit", "")))
        return said

    def sentence(self) -> str:
        """One line for a log."""
        return f"{self.phase}: " + ", ".join([self.how_far(), *self.how_fast()])


def _speed(rate: float, unit: str) -> str:
    """Units per second, or seconds per unit if a unit takes longer than a second."""
    if rate < 1:
        each = f"{1 / rate:,.1f} s" if rate > 0.1 else duration(1 / rate)
        return f"{each} a {singular(unit) or 'unit'}"
    return f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.1f} {unit}/s"


def relay(event: dict[str, Any], file: Path | None = None) -> None:
    """Appends an event to the progress file that the starting terminal follows, if there is one. A missing file is ignored, so
    a run whose terminal is gone continues."""
    target = file or (Path(os.environ["MILLRACE_PROGRESS"]) if os.environ.get("MILLRACE_PROGRESS") else None)
    if target is not None:
        with suppress(FileNotFoundError), target.open("a", encoding="utf-8") as out:
            out.write(json.dumps(event) + "\n")
