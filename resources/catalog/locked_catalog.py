"""A locked connection to the catalog: it reads the lake's own rows, and nothing else.

    with locked(lake.catalog, lake.root, Limits()) as connection: connection.sql("from interactions")

For every query: only files that the catalog's views name can be opened, no other files of the lake; no extension is loaded, no
secret read, no Python variable visible; no setting can be changed; memory is bounded, and so is the spill folder, which is
removed afterwards. The catalog is attached read-only to a database in memory, so queries of one process never share settings.

DuckDB's lock allows `copy` to overwrite the files that may be read, so a statement is run only after
resources/catalog/question.py has checked that it is a query.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

from resources.tables import sql_literal

DEFAULT_MEMORY_GIB = 4.0
SPILLS = 4
"""Limit of the spill folder, as a multiple of the memory."""

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_CLOSED: dict[str, Any] = {
    "autoinstall_known_extensions": False, "autoload_known_extensions": False, "allow_community_extensions": False,
    "allow_persistent_secrets": False, "python_enable_replacements": False,
    "http_proxy": "none",  # else the environment's, with its password, is a setting that a query can show
}


@dataclass(frozen=True)
class Limits:
    """Limits of one query."""

    memory_gib: float | None = None
    """None for 4 GiB, or half of the machine's memory if that is less."""
    spill: Path | None = None
    """The folder for data that does not fit; None for a temporary one."""


@contextmanager
def locked(catalog: Path, root: Path, limits: Limits) -> Iterator[duckdb.DuckDBPyConnection]:
    """A locked connection to a catalog of the lake at `root`. Raises duckdb.Error if it cannot be opened."""
    with (
        nullcontext(limits.spill) if limits.spill else TemporaryDirectory(prefix="millrace-sql-") as spill,
        duckdb.connect(config={**_CLOSED, "temp_directory": str(spill)}) as connection,
    ):
        _bound(connection, limits)
        connection.execute("set timezone = 'UTC'")
        connection.execute(f"attach {sql_literal(str(catalog))} as catalog (read_only)")
        connection.execute("use catalog")
        connection.execute(f"set variable lake = {sql_literal(str(root))}")
        paths = ", ".join(sql_literal(f"{root}/{path}") for path in _own_files(connection))
        connection.execute(f"set allowed_paths = [{paths}]")
        connection.execute("set enable_external_access = false")
        connection.execute("set lock_configuration = true")
        yield connection


def memory_gib(connection: duckdb.DuckDBPyConnection) -> float:
    """The memory limit of a connection, in GiB."""
    [(said,)] = connection.execute("select current_setting('memory_limit')").fetchall()
    number, unit = said.split()
    return float(number) * _UNITS[unit] / 2**30


def files_of_views(catalog: Path) -> list[str]:
    """Paths inside the lake of the files that a catalog's views read."""
    with duckdb.connect(str(catalog), read_only=True) as connection:
        return _own_files(connection)


def _bound(connection: duckdb.DuckDBPyConnection, limits: Limits) -> None:
    half_of_the_machine = memory_gib(connection) / 0.8 / 2  # DuckDB's own limit is 80 % of the memory that it may use
    mib = round(1024 * (limits.memory_gib or min(DEFAULT_MEMORY_GIB, half_of_the_machine)))
    connection.execute(f"set memory_limit = '{mib} MiB'")
    connection.execute(f"set max_temp_directory_size = '{SPILLS * mib} MiB'")


def _own_files(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Paths inside the lake of the files that the catalog's views read."""
    found = connection.execute("select distinct path from view_files").fetchall()
    return [path for (path,) in found if not PurePosixPath(path).is_absolute() and ".." not in PurePosixPath(path).parts]
