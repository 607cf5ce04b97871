"""Readers of a lake while a run rewrites it.

    python -m benchmarks.readers              # 10 readers for 5 minutes on a disk, and 5 minutes on S3
    python -m benchmarks.readers --quick      # 15 seconds each

A writer replaces three days of `interactions` in one commit, again and again, and publishes the catalog after each commit.
Every commit writes the same number of rows, all with the number of the commit. Ten processes read all the while, in three
ways: the locked connection of `millrace sql`, plain DuckDB on catalog.duckdb (as its command line, DBeaver and notebooks open
it), and the Polars frame of `millrace.open(lake).table`. On S3 (a local moto server) each reader is a machine with a mirror of
its own, and instead of plain DuckDB, Polars scans the Delta table in the bucket.

errors: queries that failed. inconsistent: answers that held rows of two commits, or another number of rows. queries: answers in
all; commits: of the writer; s3: the same in a bucket.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

import millrace
from benchmarks.record import record
from benchmarks.s3_server import s3_server
from resources.catalog.build import publish
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from stores.mirror.mirror import storage_options

WORKLOAD = "busy"
DAYS = [date(2026, 6, day) for day in (1, 2, 3)]
ROWS = 3_000
"""Rows of all three days together."""
READERS = 10
ASKED = "select count(*) as rows, count(distinct client) as commits, count(distinct dt) as days from interactions"

Answer = tuple[int, int, int]
"""Rows, different commits and days of one answer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    seconds = 15 if given.quick else 300
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        on_disk = _measured(str(Path(folder) / "lake"), seconds, ("locked", "plain", "polars"))
        with s3_server() as server:
            server.bucket("bench")
            os.environ.update({**server.environment, "MILLRACE_MIRRORS": str(Path(folder) / "mirrors")})
            on_s3 = _measured("s3://bench/lake", seconds, ("locked", "delta", "polars"))
    record("readers", {**on_disk, "readers": READERS, "seconds": seconds, "s3": on_s3}, keep=not given.quick)


def _measured(place: str, seconds: float, ways: Sequence[str]) -> dict[str, Any]:
    """Reads a lake in these ways while it is written."""
    context = multiprocessing.get_context("spawn")
    lake = LakeLayout.open(place)
    _commit(lake, 0)
    ended, results = context.Event(), context.SimpleQueue()
    readers = [
        context.Process(target=_read, args=(place, ways[number % len(ways)], number, ended, results))
        for number in range(READERS)
    ]
    for reader in readers:
        reader.start()
    first = [results.get() for _ in readers]  # each has answered once: all of them read from here on
    commits, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        commits += 1
        _commit(lake, commits)
    ended.set()
    counted: Counter[str] = Counter()
    for result in [*first, *(results.get() for _ in readers)]:
        counted.update(result)
    for reader in readers:
        reader.join()
    return {
        "errors": counted["errors"],
        "inconsistent": counted["inconsistent"],
        "queries": counted["queries"],
        "commits": commits,
        "by_way": {way: counted[f"queries {way}"] for way in ways},
        "messages": sorted(name.removeprefix("message ") for name in counted if name.startswith("message ")),
    }


def _commit(lake: LakeLayout, number: int) -> None:
    """Replaces all rows in one commit."""
    rows = [
        {
            "workload": WORKLOAD,
            "dt": DAYS[place % 3],
            "interaction_id": f"i{place}",
            "client": str(number),
            "messages": f'[{{"role": "user", "content": "{place} {number}"}}]',
        }
        for place in range(ROWS)
    ]
    table = pa.Table.from_pylist(rows, schema=SCHEMAS["interactions"])
    Tables(lake).replace("interactions", table, workload=WORKLOAD, dt=DAYS)
    publish(lake)


def _locked(root: str) -> Answer:
    return millrace.open(root).sql(ASKED).row(0)


def _plain(root: str) -> Answer:
    with duckdb.connect(f"{root}/catalog.duckdb", read_only=True) as connection:
        return connection.execute(ASKED).fetchone()


def _polars(root: str) -> Answer:
    frame = millrace.open(root).table("interactions")
    return frame.select(pl.len(), pl.col("client").n_unique(), pl.col("dt").n_unique()).collect().row(0)


def _delta(root: str) -> Answer:
    frame = pl.scan_delta(f"{root}/tables/interactions", storage_options=storage_options())
    return frame.select(pl.len(), pl.col("client").n_unique(), pl.col("dt").n_unique()).collect().row(0)


WAYS: dict[str, Callable[[str], Answer]] = {"locked": _locked, "plain": _plain, "polars": _polars, "delta": _delta}


def _read(root: str, way: str, number: int, ended: Event, results: Any) -> None:
    """Asks until the writer has ended. Sends its counts after the first answer, and at the end."""
    if "MILLRACE_MIRRORS" in os.environ:
        os.environ["MILLRACE_MIRRORS"] += f"-{number}"
    counted: Counter[str] = Counter()
    sent = False
    while not ended.is_set():
        try:
            answer = tuple(WAYS[way](root))
            counted["inconsistent"] += answer != (ROWS, 1, len(DAYS))
        except Exception as error:
            counted["errors"] += 1
            counted[f"message {way}: {str(error).splitlines()[0][:200]}"] += 1
        counted["queries"] += 1
        counted[f"queries {way}"] += 1
        if not sent:
            results.put(counted)
            counted, sent = Counter(), True
    results.put(counted)


if __name__ == "__main__":
    main()
