"""The catalog: what analysts open. One small DuckDB file of views over the lake's tables and datasets.

    rebuild(lake)                                                     # after a commit; the file is swapped atomically
    query(lake, "select rule, count(*) from decisions group by rule") # an Arrow table; works while a run is writing
    with ask(lake, "from interactions") as answer: ...                # the same in batches, for results of any size
    lineage_of(lake, "math-tutor/sft_model")                          # edges from an artefact down to the log tables

A view for each table and for the current version of each dataset (math-tutor's sft_dataset is
math_tutor_sft_dataset), the tables `artefacts`, `releases`, `gates`, `approvals` and `champions`, `lineage_nodes`,
`lineage_edges`, `lineage`, and three macros: log_lines_in(artefact), weights_holding(user hash or interaction id), why(id).
`decisions` holds the decisions that are in force, `decisions_history` all of them. `relations` and `relation_columns` say
what each of them is (comments.py). Nothing is lost when the file is deleted. why.py tells the
fate of one request or line from it.

Questions are asked behind a lock (locked_catalog.py): one query, which can read the files of the views only.

Readers never meet a writer's lock: the file is immutable once it is in place, and the Parquet files that its views
name stay where they are until the tables are vacuumed. Paths are coalesce(getvariable('lake'), '<where it was
built>') || '/...', so that a copy of the lake works after `set variable lake = '<copy>'`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from resources.catalog.comments import RELATIONS, add_comments
from resources.catalog.locked_catalog import SPILLS, Limits, OldCatalogError, locked, memory_gib
from resources.catalog.question import NotAQuestionError, check_question
from resources.catalog.release_relations import RELEASE_RELATIONS, create_release_relations
from resources.lake import Lake
from resources.sql_files import create_view, rows, run, sql_text
from resources.tables import PARTITIONS, SCHEMAS, Tables, sql_literal

SPLITS = {"train", "validation", "test"}

_MANIFESTS = pa.schema([("path", pa.string()), ("manifest", pa.string())])
_LISTED = pa.schema([("relation", pa.string()), ("path", pa.string())])
_POINTERS = pa.schema([("home", pa.string()), ("version", pa.string())])


class CatalogError(Exception):
    """A question that the catalog cannot answer; one sentence that says why."""


def rebuild(lake: Lake) -> None:
    """Builds the catalog anew and puts it in place of the old one in one step."""
    tables = Tables(lake)
    with TemporaryDirectory(dir=lake.root, prefix=".catalog-") as folder:
        beside = Path(folder) / "catalog.duckdb"
        with duckdb.connect(str(beside), config={"temp_directory": folder}) as connection:
            connection.execute("set timezone = 'UTC'")
            listed = {}
            for name in SCHEMAS:
                view = "decisions_history" if name == "decisions" else name
                listed[view] = _create_table_view(connection, tables, name, view)
            manifests, pointers = _manifests(lake), _pointers(lake)
            connection.register("manifest_texts", manifests)
            connection.execute(sql_text("catalog/manifests"))
            connection.register("pointers", pointers)
            for name in ("artefacts", "lineage_edges", "lineage_nodes", "lineage", "decisions"):
                run(connection, f"catalog/{name}")
            create_release_relations(connection, lake)
            datasets, files = _create_dataset_views(connection, lake, manifests, pointers)
            connection.register("listed_files", _listed(lake, {**listed, **files}))
            for name in ("log_lines_in", "weights_holding", "steps_of", "why", "view_files", "relations", "relation_columns"):
                run(connection, f"catalog/{name}")
            add_comments(connection, datasets)
            connection.execute("checkpoint")  # closing does the same, but keeps it to itself where the disk is full
        beside.replace(lake.catalog)


@dataclass(frozen=True)
class Answer:
    """What a question gives: the columns, and the rows batch by batch. Reading a batch may raise CatalogError."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


Parameters = Sequence[Any] | Mapping[str, Any] | None


@contextmanager
def ask(
    lake: Lake, sql: str, parameters: Parameters = None, limits: Limits | None = None,
    opened: Callable[[duckdb.DuckDBPyConnection], None] | None = None,
) -> Iterator[Answer]:
    """What one query returns. `opened` is called with the connection, by which another thread can interrupt the query.

    Raises CatalogError where there is no catalog, where `sql` is no query or several, and in DuckDB's own words for bad SQL.
    """
    with open_catalog(lake, limits) as connection:
        if opened is not None:
            opened(connection)
        memory = memory_gib(connection)
        with _said_plainly(lake, memory):
            check_question(connection, sql)
            reader = connection.sql(sql, params=parameters or None).to_arrow_reader(10_000)

        def batches() -> Iterator[pa.RecordBatch]:
            with _said_plainly(lake, memory):
                yield from reader

        yield Answer(reader.schema, batches())


def query(lake: Lake, sql: str, parameters: Parameters = None) -> pa.Table:
    """All that one query returns. Raises CatalogError as `ask` does."""
    with ask(lake, sql, parameters) as answer:
        return pa.Table.from_batches(answer.batches, schema=answer.schema)


def lineage_of(lake: Lake, artefact: str) -> pa.Table:
    """The edges behind an artefact: depth, child, parent, and what the parent is.

    `artefact` is workload/name (its current version), workload/name@version, the first 4 or more digits of a version,
    or the artefact's directory. Raises CatalogError where none or several are meant.
    """
    with open_catalog(lake) as connection:
        return rows(connection, "catalog/lineage_of", node=_found(connection, lake, artefact)["node"])


@dataclass(frozen=True)
class LogLines:
    """How much of the logs is behind an artefact, `name@version`."""

    artefact: str
    interactions: int
    objects: int


def log_lines_of(lake: Lake, artefact: str) -> LogLines:
    """How many interactions, of how many log objects, are behind an artefact. Raises CatalogError as lineage_of does."""
    with open_catalog(lake) as connection:
        found = _found(connection, lake, artefact)
        name = f"{found['name']}@{found['version']}"
        [counted] = rows(connection, "catalog/count_log_lines", artefact=name).to_pylist()
    return LogLines(name, counted["interactions"], counted["objects"])


@contextmanager
def open_catalog(lake: Lake, limits: Limits | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A locked connection to the catalog. Raises CatalogError where there is none."""
    if not lake.root.is_dir():
        raise CatalogError(f"there is no lake at {lake.root}: run a recipe with --lake {lake.root} first")
    if not lake.catalog.exists():
        raise CatalogError(f"lake {lake.root} has no catalog yet: run a recipe with --lake {lake.root} first")
    with ExitStack() as stack:
        connection = _locked(lake, limits or Limits(), stack)
        try:
            yield connection
        except RuntimeError as error:  # DuckDB's word for a Ctrl-C while it works in the main thread
            if str(error) == "Query interrupted":
                raise KeyboardInterrupt from None
            raise


def _locked(lake: Lake, limits: Limits, stack: ExitStack) -> duckdb.DuckDBPyConnection:
    try:
        try:
            return stack.enter_context(locked(lake.catalog, lake.root, limits))
        except OldCatalogError:
            rebuild(lake)
            return stack.enter_context(locked(lake.catalog, lake.root, limits))
    except (duckdb.Error, OSError) as error:
        said = _one_line(error)
        if "Could not set lock" in said:
            raise CatalogError(
                f"{lake.catalog} is open for writing in another program ({said}): close it there, or open it with -readonly"
            ) from error
        raise CatalogError(f"{lake.catalog} cannot be opened ({said}): delete it and run again") from error


@contextmanager
def _said_plainly(lake: Lake, memory: float) -> Iterator[None]:
    """Errors of a question as one sentence; memory: in GiB. While rows are read, Arrow passes DuckDB's on as OSError."""
    try:
        yield
    except NotAQuestionError as error:
        raise CatalogError(str(error)) from error
    except (duckdb.Error, OSError, MemoryError) as error:
        said = _one_line(error)
        if isinstance(error, MemoryError) or said.startswith("Out of Memory"):
            said = (f"the question takes more than {memory:.1f} GiB of memory and {SPILLS * memory:.1f} GiB of files: ask for "
                    "less at a time, or allow more with --memory")
        elif said.startswith("Permission Error"):
            said = ("a question reads the tables and datasets of the lake, and nothing else "
                    f"({said.removeprefix('Permission Error: ')}); plain DuckDB on {lake.catalog} reads other files")
        raise CatalogError(said) from error


def _one_line(error: Exception) -> str:
    """DuckDB's sentence, without the picture of where in the statement it stopped."""
    return " ".join(str(error).split("\nLINE ")[0].split("\n\nLINE")[0].split())


def _found(connection: duckdb.DuckDBPyConnection, lake: Lake, artefact: str) -> dict[str, Any]:
    """The one artefact that a person means."""
    name, _, version = _as_name(artefact).partition("@")
    found = rows(connection, "catalog/find_artefact", name=name, version=version).to_pylist()
    if not found:
        raise CatalogError(
            f"no artefact {artefact} in {lake.root}: give workload/name, workload/name@version, a version or a "
            "directory; `select name, version from artefacts` lists them"
        )
    if len(found) > 1:
        raise CatalogError(f"{artefact} may be any of {', '.join(row['node'] for row in found)}: give more of it")
    return found[0]


def _as_name(artefact: str) -> str:
    """A directory as workload/name@version; anything else as it is."""
    manifest = Path(artefact) / "manifest.json"
    if not manifest.is_file():
        return artefact.removesuffix("/")
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        return f"{content['name']}@{content['version']}"
    except (ValueError, KeyError, TypeError) as error:
        raise CatalogError(f"{manifest} is not readable as a manifest: restore it from a copy") from error


def _create_table_view(connection: duckdb.DuckDBPyConnection, tables: Tables, name: str, view: str) -> list[str]:
    """Makes a table readable as `view`. Returns the files behind it."""
    files = tables.files(name)
    if files:
        create_view(connection, "catalog/table", view, SCHEMAS[name], _paths(tables.lake, files), PARTITIONS[name])
        return files
    connection.register("no_rows", SCHEMAS[name].empty_table())
    columns = connection.execute("describe no_rows").fetchall()
    connection.unregister("no_rows")
    connection.execute(
        sql_text("catalog/empty").format(
            view=view, columns=", ".join(f"cast(null as {column[1]}) as {column[0]}" for column in columns)
        )
    )
    return []


def _listed(lake: Lake, files: Mapping[str, Iterable[str | Path]]) -> pa.Table:
    """The files behind each view, as paths inside the lake."""
    return pa.Table.from_pylist(
        [{"relation": view, "path": path} for view, own in files.items() for path in _inside(lake, own)], schema=_LISTED
    )


def _inside(lake: Lake, files: Iterable[str | Path]) -> list[str]:
    return [Path(file).relative_to(lake.root).as_posix() for file in files]


def _paths(lake: Lake, files: Iterable[str | Path]) -> str:
    """Files of the lake as a list of SQL expressions that follow the lake when it is moved."""
    home = f"coalesce(getvariable('lake'), {sql_literal(str(lake.root))})"
    return ", ".join(f"{home} || {sql_literal('/' + path)}" for path in _inside(lake, files))


def _manifests(lake: Lake) -> pa.Table:
    """Every finished artefact's manifest, as text. One that is being replaced or is no JSON is none: `verify` tells."""
    found = []
    for kind in ("dataset", "model", "release"):
        depth = "*/*" if kind == "release" else "*/*/*"
        for path in sorted(lake.artefacts(kind).glob(f"{depth}/manifest.json")):
            found.append(
                {"path": path.parent.relative_to(lake.root).as_posix(), "manifest": path.read_text(encoding="utf-8")}
            )
    return pa.Table.from_pylist(found, schema=_MANIFESTS)


def _pointers(lake: Lake) -> pa.Table:
    """Which version of each artefact is the current one."""
    found = []
    for kind in ("dataset", "model", "release"):
        depth = "*" if kind == "release" else "*/*"
        for path in sorted(lake.artefacts(kind).glob(f"{depth}/current.json")):
            home = path.parent.relative_to(lake.root).as_posix()
            found.append({"home": home, "version": json.loads(path.read_text(encoding="utf-8"))["version"]})
    return pa.Table.from_pylist(found, schema=_POINTERS)


def _create_dataset_views(
    connection: duckdb.DuckDBPyConnection, lake: Lake, manifests: pa.Table, pointers: pa.Table
) -> tuple[dict[str, str], dict[str, list[Path]]]:
    """A view for the current version of each dataset, and one of all versions' rows with the interactions in them.

    Returns by view the dataset that it shows (with the kind of file, where there are several), and the files behind it.
    """
    current = {f"{row['home']}/{row['version']}" for row in pointers.to_pylist()}
    taken = {*SCHEMAS, *RELATIONS, *RELEASE_RELATIONS}
    datasets: dict[str, str] = {}
    listed: dict[str, list[Path]] = {"dataset_rows": []}
    for row in manifests.to_pylist():
        kind, workload, name, *version = row["path"].split("/")
        files = sorted((lake.root / row["path"]).glob("*.parquet")) if kind == "datasets" else []
        listed["dataset_rows"] += [file for file in files if file.stem in SPLITS and _names_interactions(file)]
        if row["path"] not in current:
            continue
        groups: dict[str, list[Path]] = {}
        for file in files:
            stem = re.sub(r"[-_]?\d+$", "", file.stem)
            groups.setdefault("" if stem in SPLITS else stem, []).append(file)
        for stem, members in groups.items():
            shown = f"{name}_{stem}" if stem and len(groups) > 1 else name
            view = _identifier(f"{workload}_{shown}", taken)
            datasets[view], listed[view] = shown, members
            connection.execute(
                sql_text("catalog/dataset").format(
                    view=view, version=sql_literal("".join(version)), files=_paths(lake, members)
                )
            )
    if listed["dataset_rows"]:
        connection.execute(sql_text("catalog/dataset_rows").format(files=_paths(lake, listed["dataset_rows"])))
    else:
        run(connection, "catalog/dataset_rows_empty")
    return datasets, listed


def _names_interactions(file: Path) -> bool:
    return "interaction_ids" in pq.read_schema(file).names


def _identifier(text: str, taken: set[str]) -> str:
    """A name that needs no quotes in SQL, different from those taken (math-tutor and math_tutor may both exist)."""
    plain = re.sub(r"[^a-z0-9_]", "_", text.lower())
    plain = f"_{plain}" if plain[0].isdigit() else plain
    name, number = plain, 2
    while name in taken:
        name, number = f"{plain}_{number}", number + 1
    taken.add(name)
    return name
