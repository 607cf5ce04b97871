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
    commit = place / "_delta_log" / f"{table.version():020}.json"
    try:
        found = commit.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
