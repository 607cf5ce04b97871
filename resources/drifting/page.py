"""Writes what the table `drift` has of a workload as one HTML page without network: <lake>/drift/<workload>.html.

    path = write_drift_page(tables, "math-tutor", report, settings)

The page shows numbers and names of tests only, no text of users. It is made again by every comparison, on the machine that
compares; in a bucket lies the table alone.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape

from model_ops.atomic_files import write_text
from resources.drifting.drift import DriftReport
from resources.drifting.plots import plots
from resources.drifting.settings import DriftSettings
from resources.plain_text import finalize
from resources.sql_files import attach_slice, rows, workbench
from resources.tables import Tables

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
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=select_autoescape(["html.j2"]), trim_blocks=True, lstrip_blocks=True,
        finalize=finalize,
    )
    page = environment.get_template("drift.html.j2").render(
        workload=workload, release=report.release, reference=report.reference, window=report.window, notes=report.notes,
        pictures=pictures,
        made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", rate=settings.false_alarms_per_1000_days, newest=newest,
        alarms=[row for row in shown if row["alarm"]], rows=[row for row in shown if row["dt"] == newest],
    )
    path = tables.lake.root / "drift" / f"{workload}.html"
    path.parent.mkdir(exist_ok=True)
    write_text(path, page)
    return path
