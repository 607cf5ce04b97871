"""A plot of each test: its value by day, the value from which on it alarms, and the days that alarmed.

    pictures = plots(rows)          # {"novelty": b"\\x89PNG...", ...}: of tests that were compared; rows: of the table `drift`
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

COLORS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7a4fa3")
UNITS = {"prompt_shapes": "PSI", "language": "PSI", "tools": "PSI", "prompt_length": "PSI", "answer_length": "PSI",
         "feedback_given": "PSI", "acceptance": "sum of evidence of a fall", "quality": "fall of the share of points"}
RISE = "rise of the share"


def plots(rows: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """A PNG for each test that has a value other than 0, by name."""
    compared = [row for row in rows if row["value"] is not None]
    tests = sorted({row["test"] for row in compared if row["value"] != 0})
    return {test: _plot(test, [row for row in compared if row["test"] == test]) for test in tests}


def _plot(test: str, rows: Sequence[Mapping[str, Any]]) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 2.4), dpi=80, layout="constrained")
    axes = figure.subplots()
    for color, length in zip(COLORS, sorted({row["window_days"] for row in rows}), strict=False):
        mine = sorted((row for row in rows if row["window_days"] == length), key=lambda row: row["dt"])
        days = [row["dt"] for row in mine]
        axes.plot(days, [row["value"] for row in mine], color=color, linewidth=1, marker=".", label=f"{length} d")
        axes.plot(days, [_number(row["bound"]) for row in mine], color=color, linewidth=1, linestyle=":")
        alarms = [row for row in mine if row["alarm"]]
        axes.scatter([row["dt"] for row in alarms], [row["value"] for row in alarms], color=color, marker="x", s=60, zorder=3)
    axes.set_ylabel(UNITS.get(test, RISE))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=len(COLORS), loc="upper left")
    axes.tick_params(axis="x", labelrotation=30)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
