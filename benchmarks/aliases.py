"""Concurrent changes of one endpoint, on a disk and in a bucket: is every change that was confirmed in the log, once?

    python -m benchmarks.aliases              # 200 changes by 8 processes on each, some minutes
    python -m benchmarks.aliases --quick      # 40 changes by 4 processes

The processes nominate, promote, name, unname and withdraw releases of one endpoint as fast as they can. In the bucket (a local
moto server) each process is a machine of its own, with its own mirror. Who is refused because another was faster tries again,
until each change is confirmed. Then the log is read by a fresh machine. lost: confirmed changes that the log does not hold
exactly once, entries that nobody confirmed, breaks of the log's chain, and aliases that are not what the log's entries add up
to. told: changes that were refused with a sentence and tried again. reads: how often another process read the endpoint's file
meanwhile, as a gateway does: without an error, its generations only growing (else the benchmark fails).
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.record import record
from benchmarks.s3_server import s3_server

CHANGES, QUICK_CHANGES, PROCESSES, QUICK_PROCESSES = 200, 40, 8, 4
KINDS = ("nominated", "named", "promoted", "unnamed", "named", "withdrawn")
WORKLOAD, SECONDS = "raced", 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few changes; nothing is recorded")
    given = parser.parse_args()
    changes, processes = (QUICK_CHANGES, QUICK_PROCESSES) if given.quick else (CHANGES, PROCESSES)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder, s3_server() as server:
        home = Path(folder)
        os.environ.update(server.environment)
        server.bucket("bench")
        found = {
            "disk": _raced(home, str(home / "lake"), changes, processes),
            "s3": _raced(home, "s3://bench/lake", changes, processes),
        }
    lost = sum(each["lost"] for each in found.values())
    record("aliases", {"changes": changes, "lost": lost, "processes": processes, **found}, keep=not given.quick)


def _raced(home: Path, lake: str, changes: int, processes: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    begin, end, results = context.Barrier(processes + 1), context.Event(), context.SimpleQueue()
    workers = [
        context.Process(target=_change, args=(home, lake, number, changes // processes, begin, results))
        for number in range(processes)
    ]
    reader = context.Process(target=_read, args=(home, lake, end, results))
    for process in (*workers, reader):
        process.start()
    begin.wait(SECONDS)
    began = time.monotonic()
    made = [change for _ in workers for change in results.get()]
    seconds = time.monotonic() - began
    end.set()
    reads = results.get()
    for process in (*workers, reader):
        process.join()
        if process.exitcode:
            raise SystemExit("a process of the race failed: its error stands above")
    confirmed = [change for change in made if change[-1] == "confirmed"]
    return {
        "confirmed": len(confirmed),
        "lost": _lost(home, lake, confirmed),
        "told": len(made) - len(confirmed),
        "sentences": sorted({change[-1] for change in made} - {"confirmed"}),
        "reads": reads,
        "seconds": round(seconds, 1),
    }


def _change(home: Path, lake: str, worker: int, count: int, begin: Any, results: Any) -> None:
    """Makes its changes and sends (action, release, by, alias, what it was told) of each try."""
    os.environ["MILLRACE_MIRRORS"] = str(home / f"machine-{worker}")
    from resources.endpoints.endpoint_log import Actor, EndpointLogError
    from resources.endpoints.endpoints import Endpoint, EndpointError
    from resources.lake.lake import LakeError, LakeLayout
    from resources.releases.release import ReleaseRef

    endpoint, by = Endpoint(LakeLayout.open(lake), WORKLOAD), Actor(f"worker-{worker}", "benchmark")
    alias, named, tries = f"alias-{worker}", "", []
    begin.wait(SECONDS)
    for number in range(count):
        kind, release = KINDS[number % len(KINDS)], f"{worker}-{number}"
        release = named if kind in ("unnamed", "withdrawn") else release
        subject = ReleaseRef(version=release, digest="0" * 64)
        change = {
            "nominated": lambda subject=subject: endpoint.nominate(subject),
            "named": lambda subject=subject: endpoint.name(alias, subject, by),
            "promoted": lambda subject=subject: endpoint.promote(subject, by),
            "unnamed": lambda: endpoint.unname(alias, by),
            "withdrawn": lambda subject=subject: endpoint.decide("withdrawn", subject, by),
        }[kind]
        named = release if kind == "named" else named
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            try:
                change()
            except (LakeError, EndpointError, EndpointLogError) as error:
                tries.append((kind, release, by.name, str(error).split(": ", 1)[-1]))
                continue
            tries.append((kind, release, by.name, "confirmed"))
            break
    results.put(tries)


def _read(home: Path, lake: str, end: Any, results: Any) -> None:
    """Reads the endpoint's file all the while, as a gateway does. Sends the number of reads; raises where one went wrong."""
    os.environ["MILLRACE_MIRRORS"] = str(home / "reader")
    from resources.endpoints.endpoints import Endpoint
    from resources.lake.lake import LakeLayout

    endpoint, generation, reads = Endpoint(LakeLayout.open(lake), WORKLOAD), 0, 0
    try:
        while not end.is_set():
            seen = endpoint.read().generation
            if seen < generation:
                raise RuntimeError(f"generation {seen} after generation {generation}")
            generation, reads = seen, reads + 1
            time.sleep(0.01)
    finally:
        results.put(reads)


def _lost(home: Path, lake: str, confirmed: list[tuple[str, ...]]) -> int:
    """Changes that the log does not hold once, entries of nobody, and disagreements of log and file. A fresh machine looks."""
    os.environ["MILLRACE_MIRRORS"] = str(home / "afterwards")
    from resources.endpoints.endpoints import Endpoint
    from resources.lake.lake import LakeLayout

    endpoint = Endpoint(LakeLayout.open(lake), WORKLOAD)
    entries = endpoint.entries()
    logged = Counter((entry.action, entry.release) for entry in entries)
    wanted = Counter((action, release) for action, release, *_ in confirmed)
    differing = sum(((wanted - logged) + (logged - wanted)).values())
    broken = len(endpoint.problems()) + sum(entry.number != number for number, entry in enumerate(entries, 1))
    return differing + broken + (endpoint.read().all() != _added_up(entries))


def _added_up(entries: list[Any]) -> dict[str, str]:
    """The aliases that the entries' actions lead to, computed without the state that each entry holds."""
    fixed: dict[str, str | None] = {"champion": None, "candidate": None, "previous": None}
    named: dict[str, str] = {}
    for entry in entries:
        match entry.action:
            case "nominated":
                fixed["candidate"] = entry.release
            case "promoted":
                fixed |= {"previous": fixed["champion"], "champion": entry.release}
                fixed["candidate"] = None if fixed["candidate"] == entry.release else fixed["candidate"]
            case "named":
                named[entry.alias] = entry.release
            case "unnamed":
                del named[entry.alias]
            case "withdrawn":
                named = {alias: release for alias, release in named.items() if release != entry.release}
                fixed["candidate"] = None if fixed["candidate"] == entry.release else fixed["candidate"]
    return {alias: release for alias, release in {**fixed, **named}.items() if release is not None}


if __name__ == "__main__":
    main()
