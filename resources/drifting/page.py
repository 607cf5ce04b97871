"""Writes the table `drift` of a workload as one HTML page without network and without text of users:
<lake>/drift/<workload>.html, on the machine that compares; in a bucket lies the table alone."""

import base64
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_ops.files import write_text
from resources.drifting.drift import DriftReport
from resources.drifting.settings import DriftSettings
from resources.lake import Tables, attach_slice, rows, workbench
from resources.records import page_environment

TEMPLATES = Path(__file__).with_name("templates")
DAYS_SHOWN = 90


def recent_rows(tables: Tables, workload: str, release: str) -> list[dict[str, Any]]:
    """Rows of the newest DAYS_SHOWN days of a release, newest first."""
    with workbench() as connection:
        attach_slice(connection, tables, "drift", workload)
        return rows(connection, "drifting/recent", release=release, days=DAYS_SHOWN).to_pylist()


def write_drift_page(tables: Tables, workload: str, report: DriftReport, settings: DriftSettings) -> Path:
    """Writes the page atomically and returns its path. Raises OSError where it cannot be written."""
    shown = recent_rows(tables, workload, report.release)
    newest = max((row["dt"] for row in shown), default=None)
    pictures = {test: base64.b64encode(picture).decode() for test, picture in plots(shown).items()}
    environment = page_environment(TEMPLATES)
    page = environment.get_template("drift.html.j2").render(
        workload=workload,
        release=report.release,
        reference=report.reference,
        window=report.window,
        notes=report.notes,
        pictures=pictures,
        made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        rate=settings.false_alarms_per_1000_days,
        newest=newest,
        alarms=[row for row in shown if row["alarm"]],
        rows=[row for row in shown if row["dt"] == newest],
    )
    path = tables.lake.root / "drift" / f"{workload}.html"
    path.parent.mkdir(exist_ok=True)
    write_text(path, page)
    return path


COLORS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7a4fa3")
UNITS = {
    "prompt_shapes": "PSI", "language": "PSI", "tools": "PSI", "prompt_length": "PSI", "answer_length": "PSI",
    "feedback_given": "PSI", "acceptance": "sum of evidence of a fall", "quality": "fall of the share of points",
}  # fmt: skip
RISE = "rise of the share"


def plots(rows: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
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
