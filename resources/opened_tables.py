"""Delta tables that this process has opened: the commit log is read once, and then only what was committed since.

    table = opened(lake.table("interactions"))      # at its newest version; None where nothing was ever committed

A log of many partitions is long, and a run asks for the same tables at every step.
"""

from __future__ import annotations

import threading
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

_OPENED = threading.local()
"""Per thread, since what one thread reads must not change because another one asks for news."""


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
    """Which file the newest commit known here is: another one, or none, where the table was removed and made anew.
    None where that commit is in a checkpoint only, and nothing tells."""
    commit = place / "_delta_log" / f"{table.version():020}.json"
    try:
        found = commit.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
