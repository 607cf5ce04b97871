"""Empties raw rows of what people and models said, while their cleaned rows stay: retention with raw_days below curated_days.

    rows_to_empty(tables, "tutor", date(2026, 6, 1))       # {"interactions": 1200, "feedback": 3}: days before that one
    empty_rows(tables, "tutor", date(2026, 6, 1))          # the same, written

An emptied interaction keeps its ids, times, counts, the numbers among its parameters, and `emptied`, a hash of how it was
served. So it is not stale, no copy of it is read again, feedback still finds it, and digests of the table do not change. A row
that was not cleaned yet keeps everything: rows of an old day that arrive late are cleaned first and emptied by the next call.
"""

from __future__ import annotations

from datetime import date

import pyarrow.compute as pc

from resources.sql_files import attach_slice, rows, run, stream, workbench
from resources.tables import Tables


def rows_to_empty(tables: Tables, workload: str, first: date, since: date | None = None) -> dict[str, int]:
    """Number of rows of days before `first` that `empty_rows` would empty, by table; tables without any are left out. since:
    the first day whose rows do not go as a whole."""
    counts = {
        "interactions": sum(_days_to_empty(tables, workload, first, since).values()),
        "feedback": sum(_commented_days(tables, workload, first, since).values()),
        "quarantine": _quarantine(tables, workload, first, since)[1],
    }
    return {name: count for name, count in counts.items() if count}


def empty_rows(tables: Tables, workload: str, first: date) -> None:
    """Empties them, one commit per day and table. A second call after a kill empties the rest."""
    for day in _days_to_empty(tables, workload, first):
        with workbench() as connection:
            for name in ("interactions", "cleaned_interactions"):
                attach_slice(connection, tables, name, workload, [day])
            run(connection, "erasing/retention/numbers_of")
            tables.replace("interactions", stream(connection, "erasing/retention/emptied"), workload=workload, dt=[day])
    for day in _commented_days(tables, workload, first):
        with workbench() as connection:
            attach_slice(connection, tables, "feedback", workload, [day])
            tables.replace("feedback", stream(connection, "erasing/retention/uncommented"), workload=workload, dt=[day])
    kept, emptied = _quarantine(tables, workload, first)
    if emptied:
        tables.replace("quarantine", kept, workload=workload)


def _days_to_empty(tables: Tables, workload: str, first: date, since: date | None = None) -> dict[date, int]:
    days = _days(tables, "interactions", workload, first, since)
    with workbench() as connection:
        for name in ("interactions", "cleaned_interactions"):
            attach_slice(connection, tables, name, workload, days)
        return dict(run(connection, "erasing/retention/empty_days").fetchall())


def _commented_days(tables: Tables, workload: str, first: date, since: date | None = None) -> dict[date, int]:
    days = _days(tables, "feedback", workload, first, since)
    with workbench() as connection:
        attach_slice(connection, tables, "feedback", workload, days)
        return dict(run(connection, "erasing/retention/commented_days").fetchall())


def _days(tables: Tables, name: str, workload: str, first: date, since: date | None) -> list[date]:
    return [day for day in tables.rows_by_day(name, workload) if day < first and (since is None or day >= since)]


def _quarantine(tables: Tables, workload: str, first: date, since: date | None = None):
    """The quarantine afterwards, and the number of records that lose their bytes."""
    with workbench() as connection:
        for name in ("objects", "quarantine"):
            attach_slice(connection, tables, name, workload)
        found = rows(connection, "erasing/retention/quarantine_emptied", workload=workload, first_day=first, since=since)
    return found.drop_columns("is_emptied"), pc.sum(found["is_emptied"]).as_py() or 0
