"""Removes files of Delta tables that no reader needs any more: Parquet files of earlier versions, and the log before a version.

    old_bytes(lake)                           # bytes that `remove_old_files` would free
    remove_old_files(lake, keep_hours=0)      # also the statistics in the log, which quote the first characters of texts

Time travel ends there: only the newest version can be read. A reader that has an older version open loses its files.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from resources.lake import Lake

LOG = "_delta_log"


def old_bytes(lake: Lake) -> int:
    """Bytes of Parquet files that the newest versions of the tables do not name."""
    total = 0
    for place, table in _tables(lake):
        named = {unquote(uri).rsplit("/", 1)[-1] for uri in table.file_uris()}
        total += sum(path.stat().st_size for path in place.rglob("*.parquet")
                     if path.name not in named and path.parent.name != LOG)
    return total


def remove_old_files(lake: Lake, keep_hours: float = 0) -> int:
    """Removes files that were replaced more than keep_hours ago; returns their bytes. The log keeps its newest commit, and a
    checkpoint that stands for the earlier ones."""
    before = time.time() - keep_hours * 3_600
    freed = 0
    for place, table in _tables(lake):
        files = {path: path.stat().st_size for path in place.rglob("*.parquet")}
        table.vacuum(retention_hours=int(keep_hours), enforce_retention_duration=False, dry_run=False, full=True)
        freed += sum(size for path, size in files.items() if not path.exists())
        table = DeltaTable(str(place))
        table.create_checkpoint()
        freed += _shorten_log(place / LOG, table.version(), before)
    return freed


def _tables(lake: Lake) -> list[tuple[Path, DeltaTable]]:
    found = []
    for place in sorted((lake.root / "tables").glob("*")):
        with suppress(TableNotFoundError, FileNotFoundError):
            found.append((place, DeltaTable(str(place))))
    return found


def _shorten_log(log: Path, version: int, before: float) -> int:
    """Removes commits and checkpoints older than a version, which has a checkpoint of its own."""
    if json.loads((log / "_last_checkpoint").read_text())["version"] != version:
        return 0
    freed = 0
    for path in log.iterdir():
        number = path.name.split(".")[0]
        if number.isdigit() and int(number) < version and path.stat().st_mtime <= before:
            freed += path.stat().st_size
            path.unlink()
    return freed
