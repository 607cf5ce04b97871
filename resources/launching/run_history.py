"""Reads Dagster's history of a lake without writing: runs in progress, and the duration of each step of a run.

    for run in running(lake): run.run_id, run.job, run.started_at, run.is_alive
    seconds_of_steps(lake, run_id)          # {"sft_model": 12.3, ...}

Reads the SQLite files of <lake>/.dagster (MILLRACE_HOME moves it) that the shipped dagster.yaml makes Dagster keep; opening a
DagsterInstance would create and migrate them, and takes seconds. Missing or unreadable files count as no runs.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from resources.lake import Lake
from resources.process_stamp import is_same_process
from resources.sql_files import sql_text

PROCESS_TAG, HOST_TAG = "millrace/process", "millrace/host"
"""Tags of a run: the stamp of its process, and the name of the machine that has it."""
IN_PROGRESS = ("STARTED", "STARTING", "CANCELING", "QUEUED")


@dataclass(frozen=True)
class SeenRun:
    """is_alive: whether its process still exists; None if the run does not record its process."""

    run_id: str
    job: str
    status: str
    started_at: datetime | None
    ended_at: datetime | None
    process: str = ""

    @property
    def is_in_progress(self) -> bool:
        return self.status in IN_PROGRESS

    @property
    def is_alive(self) -> bool | None:
        if not self.process:
            return None
        return is_same_process(self.process)


def runs(lake: Lake, limit: int = 200) -> list[SeenRun]:
    """The newest runs, newest first."""
    found = _rows(home_of(lake) / "history" / "runs.db", "history/runs", tag=PROCESS_TAG, count=limit)
    return [SeenRun(run_id, job or "", status or "", _time(started), _time(ended), process or "")
            for run_id, job, status, started, ended, process in found]


def running(lake: Lake) -> list[SeenRun]:
    """Runs in progress by the history, including runs whose process was killed."""
    return [run for run in runs(lake) if run.is_in_progress]


def seconds_of_steps(lake: Lake, run_id: str) -> dict[str, float]:
    """Seconds from start to success of each step of a run that succeeded."""
    found = _rows(home_of(lake) / "history" / "runs" / f"{run_id}.db", "history/steps")
    return {step: seconds for step, seconds, _ in found if step and seconds is not None}


def steps_underway(lake: Lake, run_id: str) -> list[str]:
    """Steps of a run that have begun and not ended."""
    found = _rows(home_of(lake) / "history" / "runs" / f"{run_id}.db", "history/steps")
    return [step for step, seconds, has_failed in found if step and seconds is None and not has_failed]


def home_of(lake: Lake) -> Path:
    """Dagster's folder of a lake: DAGSTER_HOME."""
    return Path(os.environ.get("MILLRACE_HOME") or lake.dagster_home)


def _rows(path: Path, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """The query's rows; none if the file is missing, damaged or locked."""
    if not path.is_file():
        return []
    for address in _addresses(path):
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=1)) as connection:
                return connection.execute(sql_text(query), parameters).fetchall()
        except sqlite3.Error:
            continue
    return []


def _addresses(path: Path) -> Iterator[str]:
    """SQLite addresses of the file: read-only, and immutable for folders in which SQLite cannot write its own files."""
    yield f"{path.absolute().as_uri()}?mode=ro"
    yield f"{path.absolute().as_uri()}?mode=ro&immutable=1"


def _time(seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None
