"""Keeps Delta tables open: the commit log is read once, and later only what was committed since.

    table = opened(lake.table("interactions"))      # at its newest version; None if nothing was ever committed

A log of many partitions is long, and a run asks for the same tables at every step.
"""

from __future__ import annotations

import threading
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

_OPENED = threading.local()
"""One cache per thread: a table that a thread reads must not change because another thread updates it."""


def opened(place: Path) -> DeltaTable | None:
    """The table at `place` at its newest version, or None where there is none."""
    known: dict[Path, tuple[DeltaTable, tuple[int, int]]] = _OPENED.__dict__.setdefault("tables", {})
    table, stamp = known.get(place, (None, None))
    try:
        if table is not None and stamp is not None and stamp == _stamp(place, table):
            if not _commit(place, table.version() + 1).exists():  # commits are numbered without gaps
                return table
            table.update_incremental()
        else:
            table = DeltaTable(str(place))
        known[place] = (table, _stamp(place, table))
    except (TableNotFoundError, FileNotFoundError):
        known.pop(place, None)
        return None
    return table


def _stamp(place: Path, table: DeltaTable) -> tuple[int, int] | None:
    """Identity of the newest known commit's file; it differs, or is missing, if the table was removed and created again. None
    if that commit is only in a checkpoint."""
    try:
        found = _commit(place, table.version()).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _commit(place: Path, version: int) -> Path:
    return place / "_delta_log" / f"{version:020}.json"
