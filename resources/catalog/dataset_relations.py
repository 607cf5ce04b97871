"""Datasets in SQL: sft_dataset of the workload math-tutor is `math_tutor_sft_dataset`, with all versions `..._versions`. A
dataset whose files are of several kinds has a view for each, such as `math_tutor_evaluation_report_likelihood`."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from resources.artefacts import find_taints
from resources.catalog.comments import RELATIONS, text_of
from resources.endpoints import (
    Aliases,
    Endpoint,
    EndpointError,
    EndpointLog,
    EndpointLogEntry,
    EndpointLogError,
    workloads_with_endpoints,
)
from resources.lake import SCHEMAS, LakeLayout, run, sql_literal, sql_text

SPLITS = {"train", "validation", "test"}

_LISTED = pa.schema(
    [("path", pa.string()), ("relation", pa.string()), ("versions_relation", pa.string()), ("row_count", pa.int64())]
)


@dataclass
class _Kind:
    """The files of one kind in all versions of a dataset, by the version's directory inside the lake."""

    dataset: str
    files: dict[str, list[Path]] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    schemas: dict[str, pa.Schema] = field(default_factory=dict)


def create_dataset_relations(
    connection: duckdb.DuckDBPyConnection, lake: LakeLayout, manifests: pa.Table, pointers: pa.Table
) -> tuple[dict[str, str], dict[str, list[Path]]]:
    """Creates the views of datasets, `dataset_rows`, `metrics_lines`, `sampled_answers`, `rollouts`, and rows for `datasets`.
    Returns, for each view, its dataset (with the kind of file, if there are several), and the files behind it."""
    current = {f"{row['home']}/{row['version']}" for row in pointers.to_pylist()}
    kinds, in_rows = _kinds(lake, manifests.column("path").to_pylist())
    taken = {*SCHEMAS, *RELATIONS, *RELEASE_RELATIONS}
    views: dict[str, str] = {}
    files: dict[str, list[Path]] = {"dataset_rows": in_rows}
    listed = []
    for plain, kind in kinds.items():
        shown = sorted(path for path in kind.files if path in current)
        view = _identifier(plain, taken)
        versions = _identifier(f"{view}_versions", taken)
        if shown:
            views[view], files[view] = kind.dataset, kind.files[shown[0]]
            connection.execute(
                sql_text("catalog/artefacts/dataset").format(
                    view=view, version=sql_literal(shown[0].rpartition("/")[2]), files=paths_in_sql(lake, files[view])
                )
            )
        views[versions], files[versions] = kind.dataset, _create_versions(connection, lake, versions, kind, shown)
        listed += [
            {"path": path, "relation": view if shown else None, "versions_relation": versions, "row_count": kind.rows[path]}
            for path in kind.files
        ]
    if in_rows:
        connection.execute(sql_text("catalog/artefacts/dataset_rows").format(files=paths_in_sql(lake, in_rows)))
    else:
        run(connection, "catalog/artefacts/dataset_rows_empty")
    for view, name, statement, without in (
        ("metrics_lines", "metrics.jsonl", "catalog/artefacts/metrics_lines", "catalog/artefacts/metrics_lines_empty"),
        ("sampled_answers", "sampled.parquet", "catalog/artefacts/sampled_answers", "catalog/artefacts/sampled_answers_empty"),
        ("rollouts", "rollouts.parquet", "catalog/artefacts/rollouts", "catalog/artefacts/rollouts_empty"),
    ):
        files[view] = _over_files(connection, lake, manifests, name, statement, without)
    connection.register("listed_datasets", pa.Table.from_pylist(listed, schema=_LISTED))
    return views, files


def _kinds(lake: LakeLayout, artefacts: Iterable[str]) -> tuple[dict[str, _Kind], list[Path]]:
    """The kinds of files of each dataset, by the name of their view, and the files that name interactions."""
    kinds: dict[str, _Kind] = {}
    in_rows: list[Path] = []
    for artefact in artefacts:
        group, workload, name, *_ = artefact.split("/")
        groups: dict[str, list[Path]] = {}
        for file in sorted((lake.root / artefact).glob("*.parquet")) if group == "datasets" else ():
            stem = re.sub(r"[-_]?\d+$", "", file.stem)
            kind_of_file, _, split = stem.rpartition("_")  # of unpaired_train: unpaired
            groups.setdefault(kind_of_file if split in SPLITS else stem, []).append(file)
        for stem, members in groups.items():
            shown = f"{name}_{stem}" if stem and len(groups) > 1 else name
            headers = _headers(members)
            if headers is None:
                continue
            kind = kinds.setdefault(f"{workload}/{shown}", _Kind(shown))
            kind.files[artefact], kind.schemas[artefact] = members, headers[-1].schema.to_arrow_schema()
            kind.rows[artefact] = sum(header.num_rows for header in headers)
            in_rows += [
                file
                for file, header in zip(members, headers, strict=True)
                if file.stem.rpartition("_")[2] in SPLITS and "interaction_ids" in header.schema.to_arrow_schema().names
            ]
    return kinds, in_rows


def _headers(files: Iterable[Path]) -> list[pq.FileMetaData] | None:
    """Footers of Parquet files; None if one cannot be read. Such a version is in no view, because a view with a broken file
    answers nothing at all; `datasets` shows it without a relation, and `millrace verify` names the file."""
    try:
        return [pq.read_metadata(file) for file in files]
    except (pa.ArrowInvalid, OSError):
        return None


def _create_versions(
    connection: duckdb.DuckDBPyConnection, lake: LakeLayout, view: str, kind: _Kind, current: Sequence[str]
) -> list[Path]:
    """Creates the view of all versions. Returns the files behind it: versions whose columns have other types than the current
    one's are left out, because their rows cannot be in one relation."""
    everything = [file for members in kind.files.values() for file in members]
    last = kind.schemas[(current or sorted(kind.files))[-1]]
    alike = [file for path, members in kind.files.items() if _unite(last, kind.schemas[path]) for file in members]
    text = f"{text_of(kind.dataset)}: all versions"
    if len(alike) < len(everything):
        text += " whose columns have the types of the current one"
    connection.execute(sql_text("catalog/artefacts/dataset_versions").format(view=view, files=paths_in_sql(lake, alike)))
    connection.execute(sql_text("catalog/artefacts/comment").format(kind="view", name=view, text=sql_literal(text)))
    return alike


def _unite(one: pa.Schema, other: pa.Schema) -> bool:
    return all(one.field(name).type == other.field(name).type for name in set(one.names) & set(other.names))


def _over_files(
    connection: duckdb.DuckDBPyConnection, lake: LakeLayout, manifests: pa.Table, name: str, statement: str, without: str
) -> list[Path]:
    """Creates a view over the files of one name in all artefacts. without: the statement for a lake that has none."""
    places = [lake.root / path / name for path in manifests.column("path").to_pylist()]
    files = [file for file in places if file.is_file()]
    if files:
        connection.execute(sql_text(statement).format(files=paths_in_sql(lake, files)))
    else:
        run(connection, without)
    return files


def inside(lake: LakeLayout, files: Iterable[str | Path]) -> list[str]:
    return [Path(file).relative_to(lake.root).as_posix() for file in files]


def paths_in_sql(lake: LakeLayout, files: Iterable[str | Path]) -> str:
    """Files of the lake as a list of SQL expressions that follow the lake when it is moved."""
    home = f"coalesce(getvariable('lake'), {sql_literal(str(lake.root))})"
    return ", ".join(f"{home} || {sql_literal('/' + path)}" for path in inside(lake, files))


def _identifier(text: str, taken: set[str]) -> str:
    """A name that needs no quotes in SQL, different from those taken (math-tutor and math_tutor may both exist)."""
    plain = re.sub(r"[^a-z0-9_]", "_", text.lower())
    plain = f"_{plain}" if plain[0].isdigit() else plain
    name, number = plain, 2
    while name in taken:
        name, number = f"{plain}_{number}", number + 1
    taken.add(name)
    return name


RELEASE_RELATIONS = ("approvals", "champions", "tainted", "releases", "gates")
"""In order of creation: releases reads approvals and tainted."""

_GATE = pa.struct(
    [
        ("name", pa.string()),
        ("wanted", pa.float64()),
        ("measured", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("passed", pa.bool_()),
        ("why", pa.string()),
    ]
)
_TIME = pa.timestamp("us", tz="UTC")
_ENTRIES = pa.schema(
    [
        ("workload", pa.string()),
        ("number", pa.int64()),
        ("ts", _TIME),
        ("who", pa.string()),
        ("identity_from", pa.string()),
        ("action", pa.string()),
        ("release", pa.string()),
        ("digest", pa.string()),
        ("reason", pa.string()),
        ("gates", pa.list_(_GATE)),
        ("replaces", pa.string()),
        ("generation", pa.int64()),
        ("candidate", pa.string()),
        ("champion", pa.string()),
        ("previous", pa.string()),
        ("alias", pa.string()),
        ("key", pa.string()),
        ("sha256", pa.string()),
        ("intact", pa.bool_()),
    ]
)
_ALIASES = pa.schema(
    [
        ("workload", pa.string()),
        ("candidate", pa.string()),
        ("champion", pa.string()),
        ("previous", pa.string()),
        ("named", pa.list_(pa.struct([("alias", pa.string()), ("release", pa.string())]))),
    ]
)
_TAINTS = pa.schema([("artefact", pa.string()), ("dataset", pa.string()), ("erased_rows", pa.int64()), ("last_erased", _TIME)])
_TEXTS = pa.schema([("path", pa.string()), ("release", pa.string())])


def create_release_relations(connection: duckdb.DuckDBPyConnection, lake: LakeLayout) -> None:
    """Creates the relations in the catalog that is being built."""
    workloads = workloads_with_endpoints(lake)
    entries = [row for workload in workloads for row in _entries(lake, workload)]
    aliases = [_alias_row(_aliases(lake, workload)) for workload in workloads]
    connection.register("log_entries", pa.Table.from_pylist(entries, schema=_ENTRIES))
    connection.register("endpoint_aliases", pa.Table.from_pylist(aliases, schema=_ALIASES))
    connection.register("release_texts", pa.Table.from_pylist(_release_texts(lake), schema=_TEXTS))
    connection.register("taints", pa.Table.from_pylist(_taints(lake), schema=_TAINTS))
    for name in RELEASE_RELATIONS:
        run(connection, f"catalog/releases/{name}")


def _entries(lake: LakeLayout, workload: str) -> list[dict[str, Any]]:
    """Every readable entry, including those that the next change will write to repair the log."""
    try:
        return [_row(entry, intact=True) for entry in Endpoint(lake, workload).entries()]
    except (EndpointLogError, EndpointError):
        stored = EndpointLog(lake, workload).stored()
        return [_row(item.entry, intact=not item.problem) for item in stored if item.entry is not None]


def _row(entry: EndpointLogEntry, intact: bool) -> dict[str, Any]:
    # `at` and `by` are reserved words of SQL
    return {
        **entry.model_dump(),
        "ts": entry.at,
        "who": entry.by,
        "alias": entry.alias or None,
        "key": _key_of(entry),
        "intact": intact,
    }


def _key_of(entry: EndpointLogEntry) -> str | None:
    """The id of the key that signed an entry, as its envelope names it; `millrace verify` checks the signature."""
    try:
        return json.loads(entry.envelope)["signatures"][0]["keyid"]
    except (ValueError, LookupError, TypeError):
        return None


def _aliases(lake: LakeLayout, workload: str) -> Aliases:
    try:
        return Endpoint(lake, workload).read()
    except EndpointError:
        return Aliases(workload=workload)


def _alias_row(aliases: Aliases) -> dict[str, Any]:
    named = [{"alias": alias, "release": release} for alias, release in sorted(aliases.named.items())]
    return {**aliases.model_dump(), "named": named}


def _taints(lake: LakeLayout) -> list[dict[str, Any]]:
    return [
        {"artefact": taint.node, "dataset": cause.dataset, "erased_rows": cause.rows, "last_erased": cause.at}
        for taint in find_taints(lake).values()
        for cause in taint.causes.values()
    ]


def _release_texts(lake: LakeLayout) -> list[dict[str, str]]:
    return [
        {"path": path.parent.relative_to(lake.root).as_posix(), "release": path.read_text(encoding="utf-8")}
        for path in sorted(lake.artefacts("release").glob("*/*/release.json"))
        if (path.parent / "manifest.json").exists()
    ]
