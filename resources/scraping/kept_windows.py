"""Windows on their way into the table serving_metrics, and what was read last: kept on disk until the table has them.

    with KeptWindows(lake, "math-tutor", "http://127.0.0.1:8000") as kept:     # one process per address and lake
        kept.keep([row], {"...": last})      # on the disk first, then in the table; rows that fail wait for the next call
        kept.last                             # what `keep` was given last, also by a process before this one

Each window is in the table once: rows that may have been committed before (a lost reply, a killed process) are looked up first.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from model_ops.atomic_files import write_json
from resources.lake import Lake
from resources.scraping.target import ScrapeError
from resources.sql_files import attach_slice, rows, workbench
from resources.tables import MANY_FILES, SCHEMAS, Tables
from stores.in_use import InUse, taken
from stores.lake_error import LakeError

TABLE = "serving_metrics"
MOST_WAITING = 20_000
"""Windows that wait at most: two weeks of minutes. Beyond, the oldest are dropped, and that is said."""
NOT_NOW = (OSError, LakeError, DeltaError)
"""Failures of a store that pass."""
KEY = ("endpoint", "release", "window_start")


class KeptWindows:
    """Raises ScrapeError on entering if another process keeps windows of this endpoint, OSError if the lake cannot be
    written."""

    def __init__(self, lake: Lake, workload: str, endpoint: str):
        self._tables, self._workload, self._endpoint = Tables(lake), workload, endpoint
        self._folder = lake.root / ".serving" / workload / "metrics" / hashlib.sha256(endpoint.encode()).hexdigest()[:12]
        self._waiting: list[dict[str, Any]] = []
        self._unsure, self._commits, self.dropped = False, 0, 0
        self.last: dict[str, Any] = {}

    def __enter__(self) -> KeptWindows:
        with ExitStack() as stack:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(taken(self._folder))
            except InUse as error:
                raise ScrapeError(f"another process reads the metrics of {self._endpoint} into this lake: stop it first"
                                  ) from error
            self._file.touch()
            self._recall()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def _file(self) -> Path:
        return self._folder / "kept.json"

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def keep(self, found: list[dict[str, Any]], last: dict[str, Any]) -> str:
        """Keeps rows and what was read last. Returns why rows wait for the next call; "" if none does."""
        self._waiting += [dict.fromkeys(SCHEMAS[TABLE].names) | row | {"workload": self._workload, "endpoint": self._endpoint}
                          for row in found]
        if (more := len(self._waiting) - MOST_WAITING) > 0:
            self._waiting, self.dropped = self._waiting[more:], self.dropped + more
        self.last = last
        problem = ""
        try:
            self._write()
            if self._waiting:
                self._commit()
                self._write()
        except NOT_NOW as error:
            self._unsure, problem = True, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return problem

    def _commit(self) -> None:
        part = self._waiting
        if self._unsure:
            there = self._there(min(row["window_start"] for row in part))
            part = [row for row in part if tuple(row[name] for name in KEY) not in there]
        if part:
            self._tables.append(TABLE, pa.Table.from_pylist(part, schema=SCHEMAS[TABLE]))
        self._waiting, self._unsure, self._commits = [], False, self._commits + 1
        if self._commits % MANY_FILES == 0:
            with suppress(*NOT_NOW):  # the rows are there; the next time merges more
                self._tables.compact(TABLE, self._workload)

    def _there(self, since: datetime) -> set[tuple[Any, ...]]:
        """Keys of windows that the table has."""
        with workbench() as connection:
            attach_slice(connection, self._tables, TABLE, self._workload)
            found = rows(connection, "scraping/windows_there", endpoint=self._endpoint, since=since).to_pylist()
        return {(row["endpoint"], row["release"], row["window_start"].astimezone(UTC)) for row in found}

    def _write(self) -> None:
        write_json(self._file, {"last": self.last, "waiting": [
            row | {"window_start": row["window_start"].isoformat(), "window_end": row["window_end"].isoformat()}
            for row in self._waiting]})

    def _recall(self) -> None:
        """Takes over what a process before this one left; a file that cannot be read is left behind."""
        try:
            said = json.loads(self._file.read_text(encoding="utf-8"))
            waiting = [row | {name: datetime.fromisoformat(row[name]) for name in ("window_start", "window_end")}
                       | {name: [tuple(each) for each in row[name] or []] for name in ("latency_ms", "finished")}
                       for row in said["waiting"]]
            self.last, self._waiting = dict(said["last"]), waiting
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        self._unsure = True
