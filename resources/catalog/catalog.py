"""Queries the catalog behind a lock (locked_catalog.py): one query, which can read the files of the views only. Reading works
while a run is writing.

    with ask(lake, "from interactions") as answer: ...                # in batches, for results of any size
    lineage_of(lake, "math-tutor/sft_model")                          # edges from an artefact down to the log tables
"""

import difflib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from model_ops.jobs import Misuse
from resources.catalog.build import update
from resources.catalog.locked_catalog import (
    SPILLS,
    Limits,
    NotAQuestionError,
    check_question,
    files_of_views,
    locked,
    memory_gib,
)
from resources.lake import LakeLayout, naming_damage, rows
from resources.records import synonyms
from stores.mirror.mirror import Mirror


class CatalogError(Misuse):
    """A query that the catalog cannot answer; the message says why."""


@dataclass(frozen=True)
class QueryResult:
    """The result of a query: columns, and rows batch by batch. Reading a batch may raise CatalogError."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


@dataclass
class Page:
    """A page, readable as an answer is."""

    answer: QueryResult
    limit: int
    number: int = 1
    """From 1."""
    more: bool = False

    @property
    def first(self) -> int:
        """Number of its first row in the whole answer, from 1."""
        return (self.number - 1) * self.limit + 1

    @property
    def schema(self) -> pa.Schema:
        return self.answer.schema

    @property
    def batches(self) -> Iterator[pa.RecordBatch]:
        skip, wanted = self.first - 1, self.limit
        for batch in self.answer.batches:
            part = batch.slice(min(skip, batch.num_rows))
            skip -= batch.num_rows - part.num_rows
            self.more = part.num_rows > wanted
            part = part.slice(0, wanted)
            wanted -= part.num_rows
            if part.num_rows:
                yield part
            if self.more:
                return


Parameters = Sequence[Any] | Mapping[str, Any] | None


@contextmanager
def ask(
    lake: LakeLayout,
    sql: str,
    parameters: Parameters = None,
    limits: Limits | None = None,
    opened: Callable[[duckdb.DuckDBPyConnection], None] | None = None,
) -> Iterator[QueryResult]:
    """Runs one query. `opened` is called with the connection, so that another thread can interrupt the query. Raises
    CatalogError if there is no catalog, if `sql` is not exactly one query, and with DuckDB's message for invalid SQL;
    DamagedFileError for a file that cannot be read."""
    with open_catalog(lake, limits) as connection:
        if opened is not None:
            opened(connection)
        memory = memory_gib(connection)
        with (
            _said_plainly(lake, memory, lambda said: _meant(connection, sql, said)),
            naming_damage(lambda: _files_read(connection, lake, sql)),
        ):
            check_question(connection, sql)
            reader = connection.sql(sql, params=parameters or None).to_arrow_reader(10_000)

        def batches() -> Iterator[pa.RecordBatch]:
            with _said_plainly(lake, memory), naming_damage(lambda: _files_read(connection, lake, sql)):
                yield from reader

        yield QueryResult(reader.schema, batches())


def query(lake: LakeLayout, sql: str, parameters: Parameters = None) -> pa.Table:
    """The whole result of one query. Raises CatalogError as `ask` does."""
    with ask(lake, sql, parameters) as answer:
        return pa.Table.from_batches(answer.batches, schema=answer.schema)


def lineage_of(lake: LakeLayout, artefact: str) -> pa.Table:
    """The edges behind an artefact: depth, child, parent, and what the parent is. `artefact` is workload/name (its current
    version), workload/name@version, the first 4 or more digits of a version, or the artefact's directory. Raises CatalogError
    unless exactly one artefact is meant."""
    with open_catalog(lake) as connection:
        return rows(connection, "catalog/queries/lineage_of", node=_artefact_meant(connection, lake, artefact)["node"])


def find_artefact(lake: LakeLayout, artefact: str) -> str:
    """The directory of the artefact that is meant, relative to the lake. Raises CatalogError as `lineage_of` does."""
    with open_catalog(lake) as connection:
        return _artefact_meant(connection, lake, artefact)["path"]


def descendants_of(lake: LakeLayout, artefact: str) -> pa.Table:
    """The edges above an artefact, down to which everything was made from it; columns and errors as of `lineage_of`."""
    with open_catalog(lake) as connection:
        return rows(connection, "catalog/queries/lineage_above", node=_artefact_meant(connection, lake, artefact)["node"])


@dataclass(frozen=True)
class LogLines:
    """Numbers of interactions, log objects and hashed users behind an artefact, `name@version`."""

    artefact: str
    interactions: int
    objects: int
    users: int


def log_lines_of(lake: LakeLayout, artefact: str) -> LogLines:
    """Counts the interactions and log objects behind an artefact. Raises CatalogError as lineage_of does."""
    with open_catalog(lake) as connection:
        chosen = _artefact_meant(connection, lake, artefact)
        name = f"{chosen['name']}@{chosen['version']}"
        [counted] = rows(connection, "catalog/queries/count_log_lines", artefact=name).to_pylist()
    return LogLines(name, counted["interactions"], counted["objects"], counted["users"])


@contextmanager
def open_catalog(lake: LakeLayout, limits: Limits | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A locked connection to the catalog. Raises CatalogError if there is no catalog."""
    if not lake.root.is_dir():
        raise CatalogError(f"there is no lake at {lake.place}: run a recipe with {lake.option} first")
    if isinstance(lake.mirror, Mirror):
        _bring_up_to_date(lake)
    if not lake.catalog.exists():
        raise CatalogError(f"lake {lake.place} has no catalog yet: run a recipe with {lake.option} first")
    with ExitStack() as stack:
        connection = _locked(lake, limits or Limits(), stack)
        try:
            yield connection
        except RuntimeError as error:  # what DuckDB raises for Ctrl-C while it works in the main thread
            if str(error) == "Query interrupted":
                raise KeyboardInterrupt from None
            raise


def _bring_up_to_date(lake: LakeLayout) -> None:
    """Makes a mirror's catalog agree with what other machines wrote, and fetches its views' files. Raises CatalogError."""
    try:
        lake.mirror.pull()
        update(lake)
        lake.mirror.fetch_files(lake.root / path for path in files_of_views(lake.catalog))
    except OSError as error:
        raise CatalogError(f"the lake {lake.place} cannot be read: {error}") from error


def _locked(lake: LakeLayout, limits: Limits, stack: ExitStack) -> duckdb.DuckDBPyConnection:
    try:
        return stack.enter_context(locked(lake.catalog, lake.root, limits))
    except (duckdb.Error, OSError) as error:
        said = _one_line(error)
        if "Could not set lock" in said:
            raise CatalogError(
                f"{lake.catalog} is open for writing in another program ({said}): close it there, or open it with -readonly"
            ) from error
        raise CatalogError(f"{lake.catalog} cannot be opened ({said}): delete it and run again") from error


@contextmanager
def _said_plainly(lake: LakeLayout, memory: float, hint: Callable[[str], str] = lambda said: "") -> Iterator[None]:
    """Errors of a query as one sentence. hint: what to add to DuckDB's. Reading rows, Arrow passes DuckDB's on as OSError."""
    try:
        yield
    except NotAQuestionError as error:
        raise CatalogError(str(error)) from error
    except (duckdb.Error, OSError, MemoryError) as error:
        said = _one_line(error)
        if isinstance(error, MemoryError) or said.startswith("Out of Memory"):
            said = (
                f"the query takes more than {memory:.1f} GiB of memory and {SPILLS * memory:.1f} GiB of files: ask for "
                "less at a time, or allow more with --memory"
            )
        elif said.startswith("Permission Error"):
            said = (
                "a query reads only the tables and datasets of the lake "
                f"({said.removeprefix('Permission Error: ')}); plain DuckDB on {lake.catalog} reads other files"
            )
        raise CatalogError(said + hint(said)) from error


def _meant(connection: duckdb.DuckDBPyConnection, sql: str, said: str) -> str:
    if not (missing := missing_column(said)):
        return ""
    listed = connection.execute("select relation, column_name from relation_columns").fetchall()
    name = meant(missing, {column for relation, column in listed if relation in sql})
    return f" Did you mean {name}?" if name else ""


def _files_read(connection: duckdb.DuckDBPyConnection, lake: LakeLayout, sql: str) -> list[Path]:
    files = connection.execute("select relation, path from view_files").fetchall()
    return sorted({lake.root / path for relation, path in files if relation in sql})


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split("\nLINE ")[0].split("\n\nLINE")[0].split())


def _artefact_meant(connection: duckdb.DuckDBPyConnection, lake: LakeLayout, artefact: str) -> dict[str, Any]:
    name, _, version = _as_name(artefact).partition("@")
    matches = rows(connection, "catalog/queries/find_artefact", name=name, version=version).to_pylist()
    if not matches:
        raise CatalogError(
            f"no artefact {artefact} in {lake.place}: give workload/name, workload/name@version, a version or a "
            "directory; `select name, version from artefacts` lists them"
        )
    if len(matches) > 1:
        raise CatalogError(f"{artefact} may be any of {', '.join(row['node'] for row in matches)}: give more of it")
    return matches[0]


def _as_name(artefact: str) -> str:
    manifest = Path(artefact) / "manifest.json"
    if not manifest.is_file():
        return artefact.removesuffix("/")
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        return f"{content['name']}@{content['version']}"
    except (ValueError, KeyError, TypeError) as error:
        raise CatalogError(f"{manifest} is not readable as a manifest: restore it from a copy") from error


COLUMNS = {
    "user": "user_hash", "session": "session_id", "time": "ts", "id": "request_id", "trace": "trace_id",
    "latency": "latency_ms", "ttft": "ttft_ms", "feedback": "value",
}  # fmt: skip
"""The tables' name of a column of resources/records/synonyms.py, where it is another."""
WORDS = {
    "gate": "name", "gate_name": "name", "threshold": "wanted", "prompt": "messages", "question": "messages",
    "request": "messages", "answer": "completion", "response": "completion", "output": "completion", "day": "dt",
    "date": "dt", "version": "release", "score": "value", "recipe": "workload",
}  # fmt: skip
_MISSING = re.compile(r'(?:column|named) "?(\w+)"? (?:not found|does not exist)|does not have a column named "?(\w+)"?')


def missing_column(said: str) -> str:
    """The unknown column in DuckDB's error message; "" for any other error."""
    match = _MISSING.search(said)
    return (match[1] or match[2]) if match else ""


def meant(name: str, there: Collection[str]) -> str:
    """The column of those that are there; "" if none is likely."""
    column = synonyms.column_of((name,))
    likely = [WORDS.get(name.lower(), ""), COLUMNS.get(column[0], column[0]) if column else ""]
    near = difflib.get_close_matches(name.lower(), sorted(there), n=1)
    return next((each for each in (*likely, *near) if each in there), "")
