"""Removes files of Delta tables that no reader needs any more: Parquet files of earlier versions, and the log before a version,
whose statistics quote the first characters of texts. Time travel ends there, and a reader of an older version loses its files.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from resources.lake import LakeError, LakeLayout

LOG = "_delta_log"


def old_bytes(lake: LakeLayout) -> int:
    """Bytes of Parquet files that the newest versions of the tables do not name."""
    total = 0
    for place, table in _tables(lake):
        named = {unquote(uri).rsplit("/", 1)[-1] for uri in table.file_uris()}
        total += sum(
            file.bytes
            for path, file in lake.mirror.table_files(place).items()
            if _is_data(path) and PurePosixPath(path).name not in named
        )
    return total


def remove_old_files(lake: LakeLayout, keep_hours: float = 0) -> int:
    """Removes files that were replaced more than keep_hours ago; returns their bytes. The log keeps its newest commit, and a
    checkpoint that stands for the earlier ones. Raises LakeError if a store in the network refuses."""
    before = time.time() - keep_hours * 3_600
    freed = 0
    for place, table in _tables(lake):
        lake.mirror.may_write()
        files = lake.mirror.table_files(place)
        try:
            table.vacuum(retention_hours=int(keep_hours), enforce_retention_duration=False, dry_run=False, full=True)
        except (DeltaError, OSError) as error:
            raise LakeError(
                f"replaced files of {lake.place}/tables/{place.name} cannot be removed: check that the keys in use "
                "may delete there, then try again"
            ) from error
        left = lake.mirror.table_files(place)
        freed += sum(file.bytes for path, file in files.items() if _is_data(path) and path not in left)
        table.update_incremental()
        table.create_checkpoint()
        freed += _shorten_log(lake, place, table.version(), before)
    lake.mirror.pull()
    return freed


def _tables(lake: LakeLayout) -> Iterator[tuple[Path, DeltaTable]]:
    """Every table's folder in the lake, and the table where it is committed to."""
    for place in sorted((lake.root / "tables").glob("*")):
        with suppress(TableNotFoundError, FileNotFoundError):
            yield place, lake.mirror.table(place)


def _is_data(path: str) -> bool:
    return path.endswith(".parquet") and not path.startswith(f"{LOG}/")


def _shorten_log(lake: LakeLayout, place: Path, version: int, before: float) -> int:
    """Removes commits and checkpoints older than a version, which has a checkpoint of its own."""
    files = lake.mirror.table_files(place)
    if f"{LOG}/{version:020}.checkpoint.parquet" not in files:
        return 0
    old = {
        path: file.bytes
        for path, file in files.items()
        if path.startswith(f"{LOG}/")
        and (number := PurePosixPath(path).name.split(".")[0]).isdigit()
        and int(number) < version
        and file.modified.timestamp() <= before
    }
    lake.mirror.remove_table_files(place, old)
    return sum(old.values())
