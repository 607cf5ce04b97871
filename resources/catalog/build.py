"""Builds the catalog: one DuckDB file of views over the lake's tables and datasets. `update` makes anew what changed since it
was built (<lake>/.remembered/catalog.json), in a copy that replaces it in one step, so readers never meet a writer's lock.
Paths are coalesce(getvariable('lake'), '<where it was built>') || '/...': a copy of the lake works after `set variable lake =
'<copy>'`."""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa

from model_ops.files import write_json
from resources.catalog.comments import add_comments, sentences_digest
from resources.catalog.dataset_relations import (
    RELEASE_RELATIONS,
    create_dataset_relations,
    create_release_relations,
    inside,
    paths_in_sql,
)
from resources.digests import source_digest
from resources.lake import PARTITIONS, SCHEMAS, LakeLayout, Tables, create_view, run, sql_text

ARTEFACTS = "artefacts"
"""The part of the catalog that is built from manifests, pointers, releases and endpoints. Each other part is a table."""
UNDER = {"decisions": "decisions_history", "feedback": "feedback_records"}
"""Tables whose view has another name, since a view of their own name is made of it."""
_OF_ARTEFACTS = (
    "artefacts", "models", "lineage_edges", "lineage_nodes", "lineage", "weight_lineage", "nodes", "edges", "decisions",
)  # fmt: skip
_MADE_WITH_DATASETS = ("datasets", "metrics")
_OVER_FILES = ("dataset_rows", "metrics_lines", "sampled_answers", "rollouts")
_LAST = (
    "feedback", "acceptance_by_shape", "named_nodes", "log_lines_in", "users_in", "weights_holding", "ancestors",
    "descendants", "steps_of", "why", "relations", "relation_columns",
)  # fmt: skip
_SEEN = (
    "datasets/*/*/*/manifest.json", "models/*/*/*/manifest.json", "releases/*/*/manifest.json", "releases/*/*/release.json",
    "datasets/*/*/current.json", "models/*/*/current.json", "releases/*/current.json", "endpoints/**/*",
    "datasets/*/*/*/erased.json", "models/*/*/*/tainted.json", "releases/*/*/tainted.json",
)  # fmt: skip

_MANIFESTS = pa.schema([("path", pa.string()), ("manifest", pa.string())])
_LISTED = pa.schema([("relation", pa.string()), ("path", pa.string())])
_POINTERS = pa.schema([("home", pa.string()), ("version", pa.string())])


def rebuild(lake: LakeLayout) -> None:
    """Builds the whole catalog here and replaces the old one in one step."""
    _build(lake, _lake_as_it_is(lake), None, {*SCHEMAS, ARTEFACTS})


def publish(lake: LakeLayout) -> list[str]:
    changed = update(lake)
    lake.mirror.publish_catalog(lake.catalog)
    return changed


def update(lake: LakeLayout) -> list[str]:
    """Brings the catalog of this machine up to date with the lake. Returns the parts that were built again."""
    now, built = _lake_as_it_is(lake), _built_from(lake)
    if built is None:
        _build(lake, now, None, {*SCHEMAS, ARTEFACTS})
        return sorted({*SCHEMAS, ARTEFACTS})
    changed = {part for part in now["parts"] if built["parts"].get(part) != now["parts"][part]}
    if changed:
        _build(lake, now, built, changed)
    return sorted(changed)


def _build(lake: LakeLayout, now: dict[str, Any], built: dict[str, Any] | None, parts: Collection[str]) -> None:
    with TemporaryDirectory(dir=lake.root, prefix=".catalog-") as folder:
        beside = Path(folder) / "catalog.duckdb"
        if built is not None and not _copied(lake.catalog, built["catalog"], beside):
            built, parts = None, {*SCHEMAS, ARTEFACTS}
        with duckdb.connect(str(beside), config={"temp_directory": folder}) as connection:
            connection.execute("set timezone = 'UTC'")
            views = _remake(connection, lake, parts, built["views"] if built is not None else None)
            connection.execute("checkpoint")  # closing does the same, but hides the error of a full disk
        stamp = _stamp(beside)
        beside.replace(lake.catalog)
    with suppress(OSError):  # an unknown catalog is built again
        write_json(_state_file(lake), {**now, "catalog": stamp, "views": views})


def _copied(catalog: Path, stamp: list[int], to: Path) -> bool:
    with suppress(FileNotFoundError), catalog.open("rb") as source:
        if _stamp_of(os.fstat(source.fileno())) == stamp:
            with to.open("wb") as target:
                shutil.copyfileobj(source, target)
            return True
    return False


def _remake(
    connection: duckdb.DuckDBPyConnection, lake: LakeLayout, parts: Collection[str], before: Mapping[str, str] | None
) -> dict[str, str]:
    """Builds parts of a catalog. before: its views of datasets, each with its dataset. Returns the same after the change."""
    files = {} if before is None else _files_of_views(connection)
    tables, views = Tables(lake), dict(before or {})
    if before is None:
        run(connection, "catalog/artefacts/metric_name")
    for name in SCHEMAS:
        if name in parts:
            view = UNDER.get(name, name)
            _drop(connection, [view])
            files[view] = inside(lake, _create_table_view(connection, tables, name, view))
    if ARTEFACTS in parts:
        lake.mirror.fetch(lake.root / "datasets")
        _drop(connection, [*_OF_ARTEFACTS, *RELEASE_RELATIONS, *_MADE_WITH_DATASETS, *_OVER_FILES, *views])
        for view in (*_OVER_FILES, *views):
            files.pop(view, None)
        manifests, pointers = _manifests(lake), _pointers(lake)
        connection.register("manifest_texts", manifests)
        connection.execute(sql_text("catalog/artefacts/manifests"))
        connection.register("pointers", pointers)
        for name in _OF_ARTEFACTS:
            run(connection, f"catalog/artefacts/{name}")
        create_release_relations(connection, lake)
        views, of_datasets = create_dataset_relations(connection, lake, manifests, pointers)
        for name in _MADE_WITH_DATASETS:
            run(connection, f"catalog/artefacts/{name}")
        files |= {view: inside(lake, own) for view, own in of_datasets.items()}
    _drop(connection, ["view_files"])
    connection.register(
        "listed_files",
        pa.Table.from_pylist([{"relation": view, "path": path} for view, own in files.items() for path in own], schema=_LISTED),
    )
    run(connection, "catalog/artefacts/view_files")
    for name in _LAST if before is None else ():
        run(connection, f"catalog/lookups/{name}")
    add_comments(connection, views)
    return views


def _drop(connection: duckdb.DuckDBPyConnection, names: Iterable[str]) -> None:
    views = connection.execute("select view_name from duckdb_views() where not internal").fetchall()
    tables = connection.execute("select table_name from duckdb_tables()").fetchall()
    kinds = {name: kind for kind, listed in (("view", views), ("table", tables)) for (name,) in listed}
    for name in names:
        if name in kinds:
            connection.execute(f'drop {kinds[name]} "{name}"')


def _files_of_views(connection: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for view, path in connection.execute("select relation, path from view_files").fetchall():
        files.setdefault(view, []).append(path)
    return files


def _lake_as_it_is(lake: LakeLayout) -> dict[str, Any]:
    """What a catalog would be built from now. Only the tables' commit logs are opened."""
    tables = Tables(lake)
    parts = {
        name: None if (table := tables.open(name)) is None else f"{table.metadata().id} {table.version()}" for name in SCHEMAS
    }
    seen = hashlib.sha256()
    for pattern in _SEEN:
        for path in sorted(lake.root.glob(pattern)):
            with suppress(OSError):
                seen.update(f"{path.relative_to(lake.root)} {_stamp(path)}\n".encode())
    return {"code": _code(), "lake": str(lake.root), "parts": {**parts, ARTEFACTS: seen.hexdigest()}}


def _built_from(lake: LakeLayout) -> dict[str, Any] | None:
    """What the existing catalog was built from; None if unknown, or if it was built by other code or at another path."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        built = json.loads(_state_file(lake).read_text(encoding="utf-8"))
        here = {"code": _code(), "lake": str(lake.root), "catalog": _stamp(lake.catalog)}
        if all(built[name] == value for name, value in here.items()) and isinstance(built["parts"], dict):
            return built
    return None


def _code() -> str:
    return f"{source_digest('resources/catalog/build.py')} {sentences_digest()}"


def _state_file(lake: LakeLayout) -> Path:
    return lake.root / ".remembered" / "catalog.json"


def _stamp(path: Path) -> list[int]:
    return _stamp_of(path.stat())


def _stamp_of(status: os.stat_result) -> list[int]:
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def _create_table_view(connection: duckdb.DuckDBPyConnection, tables: Tables, name: str, view: str) -> list[str]:
    files = tables.files(name)
    if files:
        paths = paths_in_sql(tables.lake, files)
        create_view(connection, "catalog/artefacts/table", view, SCHEMAS[name], paths, PARTITIONS[name])
        return files
    connection.register("no_rows", SCHEMAS[name].empty_table())
    columns = connection.execute("describe no_rows").fetchall()
    connection.unregister("no_rows")
    connection.execute(
        sql_text("catalog/artefacts/empty").format(
            view=view, columns=", ".join(f"cast(null as {column[1]}) as {column[0]}" for column in columns)
        )
    )
    return []


def _manifests(lake: LakeLayout) -> pa.Table:
    """Every finished artefact's manifest, as text, but for those that are being replaced or are not JSON."""
    manifests = []
    for kind in ("dataset", "model", "release"):
        depth = "*/*" if kind == "release" else "*/*/*"
        for path in sorted(lake.artefacts(kind).glob(f"{depth}/manifest.json")):
            manifests.append(
                {"path": path.parent.relative_to(lake.root).as_posix(), "manifest": path.read_text(encoding="utf-8")}
            )
    return pa.Table.from_pylist(manifests, schema=_MANIFESTS)


def _pointers(lake: LakeLayout) -> pa.Table:
    pointers = []
    for kind in ("dataset", "model", "release"):
        depth = "*" if kind == "release" else "*/*"
        for path in sorted(lake.artefacts(kind).glob(f"{depth}/current.json")):
            home = path.parent.relative_to(lake.root).as_posix()
            pointers.append({"home": home, "version": json.loads(path.read_text(encoding="utf-8"))["version"]})
    return pa.Table.from_pylist(pointers, schema=_POINTERS)
