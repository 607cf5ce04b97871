"""A lake in a bucket against one on a disk: ingest, and what happens when two machines write at once.

    python -m benchmarks.lake_s3              # 200,000 pairs, 50 races: some minutes on 2 cores
    python -m benchmarks.lake_s3 --quick      # 20,000 pairs, 8 races

The store is a local moto server (benchmarks/s3_server.py), which is Python and shares the cores: its answers cost more than a
real store's computation, and less than a real network. Ingest reads the same local logs into both lakes, in turn, each in a
process of its own; twice, and means count. Two processes with a mirror each are the machines of a race. They begin together:

- append: both append rows to a table. Both rows have to stay.
- replace: both replace the rows of one day. The rows of one of them have to be there, all of them and no others.
- alias: both promote a release. Each has to be in the endpoint's log, or its machine was told.
- pointer: both make another version of a dataset the current one. The pointer has to name one whose machine was not told.

ratio_ingest: seconds on S3 over seconds on disk; ratio_again: of a second ingest with nothing new. races, lost: races, and
those that broke their rule; told: writers that were refused with a sentence.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.pairs import write_pairs
from benchmarks.record import record
from benchmarks.s3_server import s3_server

ROWS, QUICK_ROWS, RACES, QUICK_RACES = 200_000, 20_000, 50, 8
KINDS = ("append", "replace", "alias", "pointer")
TURNS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows and races; nothing is recorded")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        print(json.dumps(_ingested(*json.loads(given.step))))
        return
    rows, races = (QUICK_ROWS, QUICK_RACES) if given.quick else (ROWS, RACES)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder, s3_server() as server:
        home = Path(folder)
        os.environ.update(server.environment)
        server.bucket("bench")
        write_pairs(home / "logs", rows)
        seconds: dict[str, list[list[float]]] = {"disk": [], "s3": []}
        for turn in range(TURNS):
            os.environ["MILLRACE_MIRRORS"] = str(home / f"mirrors-{turn}")
            for name, lake in (("disk", str(home / f"disk-{turn}")), ("s3", f"s3://bench/turn-{turn}")):
                command = [sys.executable, "-m", "benchmarks.lake_s3", "--step", json.dumps([lake, str(home / "logs")])]
                said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                seconds[name].append(json.loads(said.splitlines()[-1]))
        mean = {name: [sum(turn[part] for turn in turns) / TURNS for part in (0, 1)] for name, turns in seconds.items()}
        raced = _races(home, "s3://bench/raced", races)
        record(
            "lake_s3",
            {
                "ratio_ingest": round(mean["s3"][0] / mean["disk"][0], 2),
                "ratio_again": round(mean["s3"][1] / mean["disk"][1], 2),
                "races": races,
                **raced,
                "rows": rows,
                "seconds": {name: [[round(value, 1) for value in turn] for turn in turns] for name, turns in seconds.items()},
            },
            keep=not given.quick,
        )


def _ingested(lake: str, logs: str) -> list[float]:
    """Seconds of a first and of a second ingest."""
    from resources.lake.lake import LakeLayout
    from resources.lake.tables import Tables
    from resources.reading.ingestion import ingest
    from resources.sources.sources import SourceSettings

    tables, took = Tables(LakeLayout.open(lake)), []
    for _ in range(2):
        began = time.monotonic()
        ingest(tables, "benchmark", {"gateway": SourceSettings(uri=logs)})
        took.append(time.monotonic() - began)
    return took


def _races(home: Path, lake: str, races: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    together, results = context.Barrier(2), context.SimpleQueue()
    machines = [
        context.Process(target=_machine, args=(str(home / f"machine-{name}"), lake, name, races, together, results))
        for name in "ab"
    ]
    for machine in machines:
        machine.start()
    told: dict[tuple[int, str], str] = {}
    for _ in range(2 * races):
        number, name, said = results.get()
        told[number, name] = said
    for machine in machines:
        machine.join()
    os.environ["MILLRACE_MIRRORS"] = str(home / "afterwards")
    broken = Counter(KINDS[number % 4] for number in range(races) if not _holds(lake, number, told))
    return {
        "lost": sum(broken.values()),
        "lost_by_kind": dict(broken),
        "told": dict(Counter(KINDS[number % 4] for (number, _), said in told.items() if said)),
        "sentences": sorted({said.split(": ", 1)[-1] for said in told.values() if said}),
    }


def _machine(mirrors: str, lake: str, name: str, races: int, together: Any, results: Any) -> None:
    """Writes in every race, and sends what it was told: "" where the write counts."""
    os.environ["MILLRACE_MIRRORS"] = mirrors
    from resources.endpoints.endpoint_log import EndpointLogError
    from resources.lake.lake import LakeError, LakeLayout
    from resources.manifests.manifest import ManifestError

    place = LakeLayout.open(lake)
    for number in range(races):
        write = _writer(place, name, number)
        together.wait()
        said = ""
        try:
            write()
        except Exception as error:  # one that is no sentence shows in `sentences`
            told = isinstance(error, LakeError | ManifestError | EndpointLogError)
            said = str(error) if told else f"{type(error).__name__}: {error}"
        results.put((number, name, said))
        together.wait()


def _writer(place: Any, name: str, number: int) -> Any:
    """The write of one machine in one race; what comes before it is done."""
    from resources.artefacts.registry import Registry
    from resources.endpoints.endpoint_log import Actor
    from resources.endpoints.endpoints import Endpoint
    from resources.lake.tables import Tables
    from resources.releases.release import ReleaseRef

    kind = KINDS[number % 4]
    if kind == "append":
        return lambda: Tables(place).append("quarantine", _rows(f"append-{number}", name))
    if kind == "replace":
        return lambda: Tables(place).replace("quarantine", _rows(f"replace-{number}", name), workload=f"replace-{number}")
    if kind == "alias":
        release = ReleaseRef(version=f"{name}{number}", digest="0" * 64)
        return lambda: Endpoint(place, "raced").promote(release, Actor(name, "benchmark"))
    registry = Registry(place, "raced")
    draft = registry.draft(
        "dataset", f"set{number}", op="race", sources=("resources/lake/lake.py",), config={"by": name}, inputs=[]
    )
    (draft.directory / "rows.txt").write_text(name)
    return lambda: registry.finish(draft, {})


def _rows(workload: str, name: str) -> Any:
    import pyarrow as pa

    from resources.lake.tables import SCHEMAS

    return pa.Table.from_pylist(
        [{"workload": workload, "source": name, "source_uri": "u", "source_row": row} for row in range(100)],
        schema=SCHEMAS["quarantine"],
    )


def _holds(lake: str, number: int, told: dict[tuple[int, str], str]) -> bool:
    """Whether the lake, as a third machine sees it, is as the rule of a race says."""
    import pyarrow.parquet as pq

    from resources.artefacts.registry import Registry
    from resources.endpoints.endpoints import Endpoint
    from resources.lake.lake import LakeLayout
    from resources.lake.tables import Tables

    place, kind = LakeLayout.open(lake), KINDS[number % 4]
    counted = [name for name in "ab" if not told[number, name]]
    if kind in ("append", "replace"):
        files = Tables(place).files("quarantine", workload=("=", f"{kind}-{number}"))
        found = Counter(source for file in files for source in pq.ParquetFile(file).read(["source"])["source"].to_pylist())
        if kind == "append":
            return found == dict.fromkeys(counted, 100) and len(counted) == 2
        return any(found == {name: 100} for name in counted)
    if kind == "alias":
        entries = Endpoint(place, "raced").entries()
        return {f"{name}{number}" for name in counted} == {
            entry.release for entry in entries if entry.release in (f"a{number}", f"b{number}")
        } and bool(counted)
    with suppress(KeyError):
        return Registry(place, "raced").current("dataset", f"set{number}").config["by"] in counted
    return False


if __name__ == "__main__":
    main()
