"""The catalog: what analysts open. One small DuckDB file of views over the lake's tables and datasets.

    rebuild(lake)                                                     # after a commit; the file is swapped atomically
    query(lake, "select rule, count(*) from decisions group by rule") # an Arrow table; works while a run is writing
    lineage_of(lake, "math-tutor/sft_model")                          # edges from an artefact down to the log tables

A view for each table and for the current version of each dataset (math-tutor's sft_dataset is
math_tutor_sft_dataset), the tables `artefacts`, `releases`, `gates`, `approvals` and `champions`, `lineage_nodes`,
`lineage_edges`, `lineage`, and three macros: log_lines_in(artefact), weights_holding(user hash or interaction id), why(id).
Nothing is lost when the file is deleted. resources/why.py tells the fate of one request or line from it.

Readers never meet a writer's lock: the file is immutable once it is in place, and the Parquet files that its views
name stay where they are until the tables are vacuumed. Paths are coalesce(getvariable('lake'), '<where it was
built>') || '/...', so that a copy of the lake works after `set variable lake = '<copy>'`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from resources.lake import Lake
from resources.releasing.relations import RELEASE_RELATIONS, create_release_relations
from resources.sql_files import create_view, rows, run, sql_text
from resources.tables import PARTITIONS, SCHEMAS, Tables, sql_literal

SPLITS = {"train", "validation", "test"}

_MANIFESTS = pa.schema([("path", pa.string()), ("manifest", pa.string())])
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
            for name in SCHEMAS:
                _create_table_view(connection, tables, name)
            manifests, pointers = _manifests(lake), _pointers(lake)
            connection.register("manifest_texts", manifests)
            connection.execute(sql_text("catalog/manifests"))
            connection.register("pointers", pointers)
            for name in ("artefacts", "lineage_edges", "lineage_nodes", "lineage"):
                run(connection, f"catalog/{name}")
            create_release_relations(connection, lake)
            _create_dataset_views(connection, lake, manifests, pointers)
            for macro in ("log_lines_in", "weights_holding", "steps_of", "why"):
                run(connection, f"catalog/{macro}")
        beside.replace(lake.catalog)


def query(
    lake: Lake, sql: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None
) -> pa.Table:
    """What a query returns. Raises CatalogError where there is no catalog, and in DuckDB's own words for bad SQL."""
    with open_catalog(lake) as connection:
        try:
            # A statement that is no query (set, describe, ...) has a result as well; one without any gives no columns.
            result = connection.sql(sql, params=parameters or None)
            return pa.table({}) if result is None else result.to_arrow_table()
        except duckdb.Error as error:
            raise CatalogError(_one_line(error)) from error


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


def open_catalog(lake: Lake) -> duckdb.DuckDBPyConnection:
    """A read-only connection to the catalog. Raises CatalogError where there is none."""
    if not lake.root.is_dir():
        raise CatalogError(f"there is no lake at {lake.root}: run a recipe with --lake {lake.root} first")
    if not lake.catalog.exists():
        raise CatalogError(f"lake {lake.root} has no catalog yet: run a recipe with --lake {lake.root} first")
    try:
        connection = duckdb.connect(str(lake.catalog), read_only=True)
    except duckdb.Error as error:
        raise CatalogError(f"{lake.catalog} cannot be opened ({_one_line(error)}): delete it and run again") from error
    connection.execute("set timezone = 'UTC'")
    connection.execute("set python_enable_replacements = false")
    connection.execute(f"set variable lake = {sql_literal(str(lake.root))}")
    return connection


def _one_line(error: duckdb.Error) -> str:
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


def _create_table_view(connection: duckdb.DuckDBPyConnection, tables: Tables, name: str) -> None:
    files = tables.files(name)
    if files:
        create_view(connection, "catalog/table", name, SCHEMAS[name], _paths(tables.lake, files), PARTITIONS[name])
        return
    connection.register("no_rows", SCHEMAS[name].empty_table())
    columns = connection.execute("describe no_rows").fetchall()
    connection.unregister("no_rows")
    connection.execute(
        sql_text("catalog/empty").format(
            view=name, columns=", ".join(f"cast(null as {column[1]}) as {column[0]}" for column in columns)
        )
    )


def _paths(lake: Lake, files: Iterable[str | Path]) -> str:
    """Files of the lake as a list of SQL expressions that follow the lake when it is moved."""
    home = f"coalesce(getvariable('lake'), {sql_literal(str(lake.root))})"
    inside = [Path(file).relative_to(lake.root).as_posix() for file in files]
    return ", ".join(f"{home} || {sql_literal('/' + path)}" for path in inside)


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
) -> None:
    """A view for the current version of each dataset, and one of all versions' rows with the interactions in them."""
    current = {f"{row['home']}/{row['version']}" for row in pointers.to_pylist()}
    taken = set(SCHEMAS) | {"artefacts", "lineage", "lineage_nodes", "lineage_edges", "dataset_rows", *RELEASE_RELATIONS}
    with_interactions = []
    for row in manifests.to_pylist():
        kind, workload, name, *version = row["path"].split("/")
        files = sorted((lake.root / row["path"]).glob("*.parquet")) if kind == "datasets" else []
        with_interactions += [file for file in files if file.stem in SPLITS and _names_interactions(file)]
        if row["path"] not in current:
            continue
        groups: dict[str, list[Path]] = {}
        for file in files:
            stem = re.sub(r"[-_]?\d+$", "", file.stem)
            groups.setdefault("" if stem in SPLITS else stem, []).append(file)
        for stem, members in groups.items():
            view = _identifier(f"{workload}_{name}_{stem}" if stem and len(groups) > 1 else f"{workload}_{name}", taken)
            connection.execute(
                sql_text("catalog/dataset").format(
                    view=view, version=sql_literal("".join(version)), files=_paths(lake, members)
                )
            )
    if with_interactions:
        connection.execute(sql_text("catalog/dataset_rows").format(files=_paths(lake, with_interactions)))
    else:
        run(connection, "catalog/dataset_rows_empty")


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
