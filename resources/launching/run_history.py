"""Reads Dagster's history of a lake without writing: runs in progress, and the duration of each step of a run.

Reads the SQLite files of <lake>/.dagster (MILLRACE_HOME moves it) that the shipped dagster.yaml makes Dagster keep, or, for
teams, the database of MILLRACE_POSTGRES (postgres.py). Opening a DagsterInstance would create and migrate the tables, and
takes seconds. Missing or unreadable files count as no runs."""

import json
import os
import socket
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from resources.lake import LakeLayout, sql_text
from resources.launching import postgres
from resources.launching.processes import is_same_process

PROCESS_TAG, HOST_TAG, JOB_TAG, RUN_TAG = "millrace/process", "millrace/host", "millrace/job", "millrace/run"
"""Tags of a run: the stamp of its process, the machine that has it, WORKLOAD/JOB (dagster.yaml lets one run of each at a time),
and the id of the `millrace run` it is a part of."""
IN_PROGRESS = ("STARTED", "STARTING", "CANCELING", "QUEUED")
SUBMITTED, REQUEST = "submitted", "request.json"
"""In Dagster's folder: the folders of submitted runs, each with its request."""

LOCATION_TAG = "dagster/code_location"
"""Dagster's own tag: the name of the code location that a run is of."""


@dataclass(frozen=True)
class RunRecord:
    """is_alive: whether its process still exists; None if the run does not record it, or another machine has it."""

    run_id: str
    job: str
    status: str
    started_at: datetime | None
    ended_at: datetime | None
    process: str = ""
    host: str = ""
    """The machine; "" if the run does not record it."""
    workload: str = ""
    submitted: str = ""
    """The `millrace run` that it is a part of; "" for none."""
    is_copied: bool = False
    """Whether its record came with a copy of a lake: its process works on the other lake."""

    @property
    def is_in_progress(self) -> bool:
        return self.status in IN_PROGRESS

    @property
    def is_alive(self) -> bool | None:
        if not self.process or self.host not in ("", socket.gethostname()):
            return None
        return is_same_process(self.process) and not self.is_copied


def runs(lake: LakeLayout, limit: int = 200) -> list[RunRecord]:
    """The newest runs, newest first."""
    asked = {"tag": PROCESS_TAG, "host": HOST_TAG, "of": JOB_TAG, "submitted": RUN_TAG, "count": limit}
    if postgres.url():
        records = _postgres_rows("history/postgres/runs", **asked)
    else:
        records = _rows(home_of(lake) / "history" / "runs.db", "history/runs", **asked)
    runs_ = []
    for run_id, job, status, started, ended, process, host, of, submitted in records:
        copied = bool(submitted) and is_copied(home_of(lake) / SUBMITTED / submitted)
        named = (process or "", host or "", (of or "").partition("/")[0], submitted or "")
        runs_.append(RunRecord(run_id, job or "", status or "", _time(started), _time(ended), *named, copied))
    return runs_


def runs_in_progress(lake: LakeLayout) -> list[RunRecord]:
    """Runs in progress by the history, including runs whose process was killed."""
    return [run for run in runs(lake) if run.is_in_progress]


def seconds_of_steps(lake: LakeLayout, run_id: str) -> dict[str, float]:
    """Seconds from start to success of each step of a run that succeeded."""
    return {step: seconds for step, seconds, _ in _steps(lake, run_id) if step and seconds is not None}


def steps_underway(lake: LakeLayout, run_id: str) -> list[str]:
    """Steps of a run that have begun and not ended."""
    return [step for step, seconds, has_failed in _steps(lake, run_id) if step and seconds is None and not has_failed]


def _steps(lake: LakeLayout, run_id: str) -> list[tuple[Any, ...]]:
    if postgres.url():
        return [
            (step, None if seconds is None else float(seconds), has_failed)
            for step, seconds, has_failed in _postgres_rows("history/postgres/steps", run=run_id)
        ]
    return _rows(home_of(lake) / "history" / "runs" / f"{run_id}.db", "history/steps")


def home_of(lake: LakeLayout) -> Path:
    """Dagster's folder of a lake: DAGSTER_HOME."""
    return Path(os.environ.get("MILLRACE_HOME") or lake.dagster_home)


def is_copied(folder: Path) -> bool:
    """Whether the folder of a submitted run is a copy: its request names another folder, which exists. False with Postgres,
    whose history does not lie in the lake."""
    with suppress(OSError, ValueError, KeyError):
        named = Path(json.loads((folder / REQUEST).read_text(encoding="utf-8"))["folder"])
        return not postgres.url() and not named.samefile(folder)
    return False


def _rows(path: Path, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """The query's rows; none if the file is missing, damaged or locked."""
    if not path.is_file():
        return []
    # read-only, and immutable for folders in which SQLite cannot write its own files
    for how in ("mode=ro", "mode=ro&immutable=1"):
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=1)) as connection,
        ):
            return connection.execute(sql_text(query), parameters).fetchall()
    return []


def _postgres_rows(query: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """The query's rows; none if the database cannot be reached or Dagster has not used it yet."""
    import sqlalchemy as sa

    engine = sa.create_engine(postgres.url(), poolclass=sa.pool.NullPool, connect_args={"connect_timeout": 5})
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(sql_text(query)), parameters)]
    except (sa.exc.DBAPIError, ImportError):
        return []


def _time(seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None
