"""A stamp of each workload's files in a Delta table, which changes with every commit that touches them.

    slice_stamp(tables, "drift", "math-tutor")        # "3-1717200000000-81920"; "" if the workload has no rows

One pass over the commit log gives the stamps of all workloads, and is made once for each version of the table: a sensor that
looks every minute at a thousand workloads reads the log once.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from resources.lake.tables import Tables

_KNOWN: dict[Path, tuple[tuple[str, int], dict[str, str]]] = {}
_LOCK = threading.Lock()


def slice_stamp(tables: Tables, name: str, workload: str) -> str:
    """Number, newest time and bytes of the files with a workload's rows."""
    table = tables.open(name)
    if table is None:
        return ""
    place, version = tables.lake.table(name), (table.metadata().id, table.version())
    with _LOCK:
        if place not in _KNOWN or _KNOWN[place][0] != version:
            _KNOWN[place] = (version, _stamps(table))
        return _KNOWN[place][1].get(workload, "")


def _stamps(table: DeltaTable) -> dict[str, str]:
    listed = pa.table(table.get_add_actions(flatten=True))
    if not listed.num_rows or "partition.workload" not in listed.column_names:
        return {}
    grouped = (
        listed.select(["partition.workload", "modification_time", "size_bytes"])
        .group_by("partition.workload")
        .aggregate([("size_bytes", "count"), ("modification_time", "max"), ("size_bytes", "sum")])
    )
    return {
        row["partition.workload"]: f"{row['size_bytes_count']}-{row['modification_time_max']}-{row['size_bytes_sum']}"
        for row in grouped.to_pylist()
    }
