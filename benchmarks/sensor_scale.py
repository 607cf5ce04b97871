"""Seconds of one tick of the sensors of 1,000 workloads that share a lake, with 100,000 log objects in the ledger of each.

    python -m benchmarks.sensor_scale             # some minutes, mostly for making the lake and the first tick
    python -m benchmarks.sensor_scale --quick     # 50 workloads with 5,000 objects

Every workload has a ledger of its own and 30 days of rows in a Delta table; its source is a directory of as many files, by
day and hour. The files are shared: all workloads' tables and sources are links to the same bytes, since 100 million files do
not fit here. Both sensors of every workload are evaluated one after the other, as Dagster's daemon does it, in one process.

tick_s: the slowest of ROUNDS ticks in which nothing was new. cpu_s: mean CPU time of one. first_tick_s: the first one, which
reads every ledger once. new_tick_s: a tick after one new object in the shared source, which every workload has to find.
idle_ms: tick_s of one workload, both sensors.
"""

import argparse
import json
import os
import tempfile
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa

from benchmarks.record import record
from pipelines.contract.recipe import Recipe, read_recipe
from pipelines.graph.decide_sensor import deciding
from pipelines.graph.schedules import jobs
from pipelines.graph.sensors import new_logs
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.sources.ledger import listed_table
from resources.sources.sources import SourceSettings, objects_after

FIRST, DAYS, ROUNDS = date(2026, 3, 1), 30, 3
SOURCE = "gateway"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    workloads, objects = (50, 5_000) if given.quick else (1_000, 100_000)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder, dg.DagsterInstance.ephemeral() as instance:
        home = Path(folder)
        names = [f"w{number:04}" for number in range(workloads)]
        source = _write_objects(home / "logs", objects)
        lake = LakeLayout.open(home / "lake")
        _write_tables(lake, names, source)
        recipes = [_recipe(name, home) for name in names]
        ticks = _Ticks(recipes, lake, instance)
        first = ticks.tick()
        used = time.process_time()
        idle = [ticks.tick() for _ in range(ROUNDS)]
        used = (time.process_time() - used) / ROUNDS
        if ticks.requests:
            raise RuntimeError(f"{ticks.requests} runs were asked for, though nothing is new")
        (home / "logs" / f"dt={FIRST + timedelta(days=200)}").mkdir()
        (home / "logs" / f"dt={FIRST + timedelta(days=200)}" / "part.jsonl").write_text("{}\n")
        new = ticks.tick()
        if ticks.requests != workloads:
            raise RuntimeError(f"{ticks.requests} of {workloads} workloads found the new object at the next tick")
    record(
        "sensor_scale",
        {
            "tick_s": round(max(idle), 2),
            "first_tick_s": round(first, 2),
            "new_tick_s": round(new, 2),
            "idle_ms": round(1_000 * max(idle) / workloads, 2),
            "cpu_s": round(used, 2),
            "ticks_s": [round(each, 2) for each in idle],
            "workloads": workloads,
            "objects": objects,
            "days": DAYS,
        },
        keep=not given.quick,
    )


class _Ticks:
    """Both sensors of every workload, with their cursors."""

    def __init__(self, recipes: list[Recipe], lake: LakeLayout, instance: dg.DagsterInstance):
        self._instance, self.requests = instance, 0
        self._sensors = []
        for recipe in recipes:
            logs, train = jobs(recipe.workload, recipe.disabled)
            self._sensors += [new_logs(recipe, lake.root, logs), deciding(recipe, lake.root, train)]
        self._cursors: list[str | None] = [None] * len(self._sensors)

    def tick(self) -> float:
        """Seconds of one tick of all."""
        began = time.perf_counter()
        for place, sensor in enumerate(self._sensors):
            context = dg.build_sensor_context(instance=self._instance, cursor=self._cursors[place])
            found = sensor.evaluate_tick(context)
            self._cursors[place] = found.cursor
            self.requests += len(found.run_requests or [])
        return time.perf_counter() - began


def _recipe(name: str, home: Path) -> Recipe:
    return read_recipe(
        {
            "workload": name,
            "base_model": "tiny",
            "sources": {SOURCE: {"uri": str(home / "logs")}},
            "first_day": FIRST.isoformat(),
            "automation": {"watch_logs": True, "decide": {"enabled": True}},
        },
        home,
    )


def _write_objects(folder: Path, count: int) -> SourceSettings:
    """Files by day and hour."""
    for number in range(count):
        hour = number * 24 * DAYS // count
        place = folder / f"dt={FIRST + timedelta(days=hour // 24)}" / f"hour={hour % 24:02}"
        if number == 0 or hour != (number - 1) * 24 * DAYS // count:
            place.mkdir(parents=True)
        (place / f"part-{number:06}.jsonl").touch()
    return SourceSettings(uri=str(folder))


def _write_tables(lake: LakeLayout, names: list[str], source: SourceSettings) -> None:
    """The ledger, and rows of 30 days, of every workload: written for the first one, linked for the others."""
    tables = Tables(lake)
    listed = listed_table(list(objects_after(SOURCE, source)))
    rows = {name: pa.nulls(len(listed), SCHEMAS["objects"].field(name).type) for name in SCHEMAS["objects"].names}
    rows |= {name: listed[name] for name in listed.column_names}
    rows |= {
        "workload": pa.array([names[0]] * len(listed)),
        "state": pa.array(["read"] * len(listed)),
        "read_as": pa.array([source.read_as] * len(listed)),
    }
    tables.append("objects", pa.table({name: rows[name] for name in SCHEMAS["objects"].names}, schema=SCHEMAS["objects"]))
    now = datetime.now(UTC)
    days = [
        dict.fromkeys(SCHEMAS["cleaned_interactions"].names)
        | {
            "workload": names[0],
            "dt": now.date() - timedelta(days=day),
            "status": "ok",
            "interaction_id": f"{day}-{number}",
            "ts": now,
        }
        for day in range(DAYS)
        for number in range(20)
    ]
    tables.append("cleaned_interactions", pa.Table.from_pylist(days, schema=SCHEMAS["cleaned_interactions"]))
    for table in ("objects", "cleaned_interactions"):
        _link(lake.table(table), names)


def _link(table: Path, names: list[str]) -> None:
    """One more commit: the files of the first workload's partitions, linked into those of the others."""
    log = (table / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    adds = [entry["add"] for entry in map(json.loads, log) if "add" in entry]
    lines = []
    for name in names[1:]:
        for add in adds:
            path = add["path"].replace(f"workload={names[0]}", f"workload={name}")
            (table / path).parent.mkdir(parents=True, exist_ok=True)
            os.link(table / add["path"], table / path)
            values = {**add["partitionValues"], "workload": name}
            lines.append(json.dumps({"add": {**add, "path": path, "partitionValues": values}}))
    (table / "_delta_log" / f"{1:020}.json").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
