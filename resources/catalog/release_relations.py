"""Releases in SQL: the relations `releases`, `gates`, `approvals`, `champions` and `tainted` of the catalog. Unreadable files
are left out; `millrace verify <lake>/endpoints` reports them.
"""

import json
from typing import Any

import duckdb
import pyarrow as pa

from resources.artefacts import tainted
from resources.endpoints import (
    Aliases,
    Endpoint,
    EndpointError,
    EndpointLog,
    EndpointLogEntry,
    EndpointLogError,
    workloads_with_endpoints,
)
from resources.lake import LakeLayout, run

RELEASE_RELATIONS = ("approvals", "champions", "tainted", "releases", "gates")
"""In order of creation: releases reads approvals and tainted."""

_GATE = pa.struct([
    ("name", pa.string()), ("wanted", pa.float64()), ("measured", pa.float64()), ("low", pa.float64()),
    ("high", pa.float64()), ("passed", pa.bool_()), ("why", pa.string()),
])  # fmt: skip
_TIME = pa.timestamp("us", tz="UTC")
_ENTRIES = pa.schema([
    ("workload", pa.string()), ("number", pa.int64()), ("ts", _TIME), ("who", pa.string()), ("identity_from", pa.string()),
    ("action", pa.string()), ("release", pa.string()), ("digest", pa.string()), ("reason", pa.string()),
    ("gates", pa.list_(_GATE)), ("replaces", pa.string()), ("generation", pa.int64()), ("candidate", pa.string()),
    ("champion", pa.string()), ("previous", pa.string()), ("alias", pa.string()), ("key", pa.string()),
    ("sha256", pa.string()), ("intact", pa.bool_()),
])  # fmt: skip
_ALIASES = pa.schema([
    ("workload", pa.string()), ("candidate", pa.string()), ("champion", pa.string()), ("previous", pa.string()),
    ("named", pa.list_(pa.struct([("alias", pa.string()), ("release", pa.string())]))),
])  # fmt: skip
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
        for taint in tainted(lake).values()
        for cause in taint.causes.values()
    ]


def _release_texts(lake: LakeLayout) -> list[dict[str, str]]:
    return [
        {"path": path.parent.relative_to(lake.root).as_posix(), "release": path.read_text(encoding="utf-8")}
        for path in sorted(lake.artefacts("release").glob("*/*/release.json"))
        if (path.parent / "manifest.json").exists()
    ]
