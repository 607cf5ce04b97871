"""Runs the statements of sql/ in DuckDB, over slices of the lake's tables. A slice is a view of the same name as its table.
DuckDB and Arrow seldom say which file is damaged: naming_damage reads the files again after an error.

    with workbench() as connection:
        attach_slice(connection, tables, "interactions", workload="math-tutor", days=[date(2026, 6, 1)])
        rows(connection, "inspecting/sample", share=0.1)         # with named parameters bound, as an Arrow table
"""

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.files import bare, replacement
from model_ops.jobs import CheckFailed
from resources.lake.schemas import PARTITIONS, SCHEMAS
from resources.lake.tables import Tables, sql_literal

SQL = Path(__file__).resolve().parents[2] / "sql"


def sql_text(name: str) -> str:
    """The text of a statement. Raises LookupError if there is no such file or section."""
    file, _, section = name.rpartition("/")
    try:
        return sections(SQL / f"{file}.sql")[section]
    except (FileNotFoundError, KeyError):
        raise LookupError(f"there is no statement {name}: add the section `-- name: {section}` to sql/{file}.sql") from None


@cache
def sections(path: Path) -> dict[str, str]:
    """The statements of a file, by section, in their order. Raises ValueError for a name that occurs twice."""
    _, *parts = re.split(r"^-- name: (\w+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    names, texts = parts[::2], [text.strip() + "\n" for text in parts[1::2]]
    if len(set(names)) < len(names):
        raise ValueError(f"{path} has two sections of one name: give one of {', '.join(names)} another")
    return dict(zip(names, texts, strict=True))


HIVE_TYPES = {"workload": "varchar", "dt": "date", "stage": "varchar"}


def run(connection: duckdb.DuckDBPyConnection, name: str, /, **parameters: Any) -> duckdb.DuckDBPyConnection:
    return connection.execute(sql_text(name), parameters or None)


def rows(connection: duckdb.DuckDBPyConnection, name: str, /, **parameters: Any) -> pa.Table:
    return connection.sql(sql_text(name), params=parameters or None).to_arrow_table()


def stream(connection: duckdb.DuckDBPyConnection, name: str, /, **parameters: Any) -> pa.RecordBatchReader:
    """The result of a query batch by batch: for results that need not fit in memory."""
    return connection.sql(sql_text(name), params=parameters or None).to_arrow_reader(10_000)


@contextmanager
def workbench() -> Iterator[duckdb.DuckDBPyConnection]:
    """A private in-memory DuckDB, in UTC, that spills to a temporary folder and is deleted afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="millrace-") as spill,
        duckdb.connect(config={"temp_directory": spill}) as connection,
    ):
        connection.execute("set timezone = 'UTC'")
        connection.execute("set parquet_metadata_cache = true")  # a table of 1,000 days is 1,000 files, read several times
        connection.execute("set python_enable_replacements = false")
        yield connection


def slice_files(tables: Tables, name: str, workload: str, days: Sequence[date] | None = None) -> list[str]:
    """Paths of the Parquet files with a workload's rows. days: only of these days."""
    of_days = {} if days is None else {"dt": ("in", [day.isoformat() for day in days])}
    return tables.files(name, workload=("=", workload), **of_days)


def attach_slice(
    connection: duckdb.DuckDBPyConnection, tables: Tables, name: str, workload: str, days: Sequence[date] | None = None
) -> None:
    """Makes a workload's rows of a table readable under the table's name; no rows if there is no table yet."""
    files = [] if days is not None and not days else slice_files(tables, name, workload, days)
    attach_files(connection, name, SCHEMAS[name], files, PARTITIONS[name])


def attach_files(
    connection: duckdb.DuckDBPyConnection, name: str, schema: pa.Schema, files: Sequence[str], partitions: Sequence[str] = ()
) -> None:
    """Makes Parquet files readable as the view `name`, with the schema's columns; a column that older files lack is null."""
    if not files:
        connection.execute(f"drop view if exists {name}")
        connection.register(name, schema.empty_table())
        return
    columns = {column: (held, types) for column, held, types in run(connection, "tables/columns", files=list(files)).fetchall()}
    alike = all(columns.get(column) == (len(files), 1) for column in schema.names if column not in partitions)
    create_view(
        connection,
        "tables/slice",
        name,
        schema,
        ", ".join(sql_literal(file) for file in files),
        partitions,
        union_by_name=str(not alike).lower(),
    )


def create_view(
    connection: duckdb.DuckDBPyConnection,
    query: str,
    name: str,
    schema: pa.Schema,
    files: str,
    partitions: Sequence[str] = (),
    **placeholders: str,
) -> None:
    """Creates the view `name` over Parquet files: the schema's columns, null if no file has them. files: SQL. The statement is
    a `create or replace` with the placeholders view, columns, files, types, and those given."""
    types = ", ".join(f"{column}: {HIVE_TYPES[column]}" for column in partitions) or "workload: varchar"

    def create(columns: Sequence[str]) -> None:
        connection.execute(
            sql_text(query).format(view=name, columns=", ".join(columns), files=files, types=types, **placeholders)
        )

    try:
        create(schema.names)
    except duckdb.BinderException:  # written before a column was added; checking first would open every file
        create("*")
        held = set(connection.table(name).columns)
        empty = connection.from_arrow(schema.empty_table())
        create(
            [
                column if column in held else f"cast(null as {kind}) as {column}"
                for column, kind in zip(schema.names, empty.types, strict=True)
            ]
        )


def attach_parquet(connection: duckdb.DuckDBPyConnection, view: str, path: Path) -> None:
    connection.execute(sql_text("tables/parquet").format(view=view, files=sql_literal(str(path))))


def write_rows(reader: pa.RecordBatchReader, path: Path, schema: pa.Schema | None = None) -> int:
    """Streams a result into one Parquet file, replaced whole, and returns its count of rows. The same rows in the same order
    give the same bytes: an artefact's digest depends on nothing else."""
    schema = bare(schema or reader.schema)
    written = 0
    with replacement(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for batch in reader:
            part = pa.Table.from_batches([batch]).cast(schema)
            writer.write_table(part)
            written += len(part)
    return written


BATCH_ROWS = 8_192


class DamagedFileError(CheckFailed):
    """A file of the lake cannot be read to its end; the message names it and says what to do."""


@contextmanager
def naming_damage(files: Callable[[], Iterable[str | Path]]) -> Iterator[None]:
    """Raises DamagedFileError instead of a reader's error if one of the files is damaged; any other error stays what it is."""
    try:
        yield
    except (
        duckdb.OutOfMemoryException,
        duckdb.InterruptException,
        duckdb.PermissionException,
        duckdb.CatalogException,
        duckdb.BinderException,
        duckdb.ParserException,
    ):
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
    return (
        f"restore it from a copy of the lake, or remove the directory {version} (a run makes the current version of a "
        "dataset again), and try again"
    )
