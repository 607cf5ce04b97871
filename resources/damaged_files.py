"""Names the damaged Parquet file behind an error of DuckDB or Arrow, whose own words seldom say which file it was.

    with naming_damage(lambda: files):
        rows(connection, "composing/diff/changes")

The files are read again only after an error. A file whose bytes changed and still decode is not found here: `millrace verify`
compares digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.errors import FoundWrong

BATCH_ROWS = 8_192


class DamagedFileError(FoundWrong):
    """A file of the lake cannot be read to its end; the message names it and says what to do."""


@contextmanager
def naming_damage(files: Callable[[], Iterable[str | Path]]) -> Iterator[None]:
    """Raises DamagedFileError instead of a reader's error if one of the files is damaged; any other error stays what it is."""
    try:
        yield
    except (duckdb.OutOfMemoryException, duckdb.InterruptException, duckdb.PermissionException, duckdb.CatalogException,
            duckdb.BinderException, duckdb.ParserException):
        raise
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        damaged = next((path for path in map(Path, files()) if path.exists() and not _is_readable(path)), None)
        if damaged is None:
            raise
        raise DamagedFileError(f"{damaged} is damaged: {_remedy(damaged)}") from error


def _is_readable(path: Path) -> bool:
    try:
        with pq.ParquetFile(path) as file:
            for _ in file.iter_batches(BATCH_ROWS):
                pass
    except (pa.ArrowException, OSError):
        return False
    return True


def _remedy(path: Path) -> str:
    version = next((folder for folder in path.parents if (folder / "manifest.json").exists()), None)
    if version is None:
        return "restore it from a copy of the lake, and try again"
    return (f"restore it from a copy of the lake, or remove the directory {version} (a run makes the current version of a "
            "dataset again), and try again")
