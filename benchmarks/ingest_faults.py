"""Kills, corrupted lines, a truncated gzip, objects that change, and a reader all the while: is it the same table?

    python -m benchmarks.ingest_faults            # 20 kills on local files and 20 on a local S3 server; some minutes
    python -m benchmarks.ingest_faults --quick    # 6 kills on local files, under a minute

Logs of four formats arrive in portions, some objects change later, records stand in several objects, and 5 % of the lines
are corrupted: a flipped bit, a cut line, a byte that is no UTF-8. A process that ingests them is killed with SIGKILL at a
random moment of each portion (seeded) and another one goes on, in batches small enough that kills land between and within
commits. Meanwhile a process queries the catalog and the tables. In the end every table has to hold, row for row, what one
undisturbed ingest of the same objects makes; lost_rows counts the rows that differ, either way.
"""

import argparse
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import zstandard

from benchmarks.record import record
from benchmarks.s3_server import s3_server
from resources.catalog.build import rebuild
from resources.catalog.catalog import query
from resources.lake.lake import LakeLayout
from resources.lake.sql_files import attach_slice, workbench
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings

WORKLOAD, SEED, CORRUPTED = "tutor", 3, 0.05
TABLES = ("interactions", "feedback", "quarantine", "decisions", "objects")


def pair(number: int, answer: str = "yes") -> dict[str, Any]:
    return {
        "timestamp": f"2026-06-{1 + number % 5:02}T10:00:{number % 60:02}Z",
        "client_id": "web",
        "workload_id": WORKLOAD,
        "request": {"model": "m", "messages": [{"role": "user", "content": f"question {number} " * 10}]},
        "response": {
            "id": f"chatcmpl-{number}",
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}],
        },
    }


def litellm(number: int) -> dict[str, Any]:
    start = 1_780_300_000 + number * 60
    return {
        "id": f"litellm-{number}",
        "call_type": "acompletion",
        "status": "success",
        "startTime": start,
        "endTime": start + 1,
        "model": "m",
        "messages": [{"role": "user", "content": f"question {number}"}],
        "response": {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}]},
    }


def thumb(number: int) -> dict[str, Any]:
    return {
        "request_id": f"chatcmpl-{number}",
        "name": "thumbs",
        "value": 1 if number % 3 else -1,
        "timestamp": f"2026-06-{1 + number % 5:02}T12:00:00Z",
    }


def corrupted(line: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(line))
    match draw.randrange(3):
        case 0:
            flipped = bytes([line[place] ^ (1 << draw.randrange(8))])
            return (line[:place] + flipped + line[place + 1 :]).replace(b"\n", b" ")
        case 1:
            return line[:place]
        case _:
            return line[:place] + b"\xff\xfe" + line[place:]


def lines(records: list[dict[str, Any]], draw: random.Random) -> bytes:
    texts = [json.dumps(each).encode() for each in records]
    return b"\n".join(corrupted(text, draw) if draw.random() < CORRUPTED else text for text in texts) + b"\n"


def portion(step: int, size: int) -> dict[str, bytes]:
    """Objects that arrive, or change, at a step: names and contents. The last 5 % of a portion's records stand in the
    next portion's objects as well, with another answer, and two steps later the object that held them changes."""
    draw = random.Random(SEED * 1000 + step)
    first = step * size
    numbers = list(range(first - size // 20, first + size))
    draw.shuffle(numbers)
    parts = [numbers[part::4] for part in range(4)]
    found = {
        f"pairs/{step:02}-a.jsonl": lines([pair(number) for number in parts[0]], draw),
        f"pairs/dt=2026-06-0{1 + step % 5}/{step:02}-b.jsonl.gz": gzip.compress(
            lines([pair(number, f"of step {step}") for number in parts[1]], draw), mtime=0
        ),
        f"pairs/{step:02}-c.jsonl.zst": zstandard.compress(lines([pair(number) for number in parts[2]], draw)),
        f"thumbs/{step:02}.jsonl": lines([thumb(number) for number in parts[3]], draw),
        **{
            f"litellm/2026-06-0{1 + step % 5}/{step:02}-{number}.json": lines([litellm(number)], draw)
            for number in parts[3][:10]
        },
    }
    cut = gzip.compress(lines([pair(number) for number in parts[3]], draw), mtime=0)
    found[f"pairs/{step:02}-d.jsonl.gz"] = cut if step % 4 else cut[: len(cut) * 2 // 3]
    if step >= 2:  # an earlier object comes again: it lacks some of its records, and brings some of its neighbour's
        was = (step - 2) * size
        again = range(was + size // 10, was + size // 2)
        found[f"pairs/{step - 2:02}-a.jsonl"] = lines([pair(number) for number in again], draw)
    return found


@dataclass
class Place:
    """Where the objects lie."""

    root: str
    environment: dict[str, str] = field(default_factory=dict)
    server: Any = None

    def put(self, objects: dict[str, bytes]) -> None:
        for name, content in objects.items():
            if self.server is not None:
                self.server.put("faults", name, content)
                continue
            path = Path(self.root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".part").write_bytes(content)
            path.with_suffix(".part").replace(path)

    @property
    def sources(self) -> dict[str, SourceSettings]:
        return {name: SourceSettings(uri=f"{self.root}/{name}") for name in ("pairs", "litellm", "thumbs")}


def child(place: Place, *words: str) -> subprocess.Popen[str]:
    """Runs a part of this file in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.ingest_faults", *words],
        env={**os.environ, **place.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ingest_now(lake: Path, root: str) -> None:
    """The process that is killed. It prints a line when it begins, because importing is not tested."""
    mock.patch("resources.reading.batches.BATCH_BYTES", 40_000).start()
    tables = Tables(LakeLayout.open(lake))
    print("began", flush=True)
    report = ingest(tables, WORKLOAD, Place(root).sources)
    rebuild(tables.lake)
    print(report.model_dump_json(), flush=True)


def read_all_the_while(lake: Path) -> None:
    """The reader: queries until it is stopped, then reports the number of queries and errors."""
    stopped = False

    def stop(*_: Any) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    queries, errors = 0, []
    tables = Tables(LakeLayout.open(lake))
    while not stopped:
        for name in TABLES:
            for ask in (_by_catalog, _by_table):
                try:
                    ask(tables, name)
                except Exception as error:  # any error counts
                    errors.append(f"{ask.__name__} {name}: {type(error).__name__}: {error}"[:300])
                queries += 1
        time.sleep(0.05)
    print(json.dumps({"queries": queries, "errors": errors}), flush=True)


def _by_catalog(tables: Tables, name: str) -> None:
    query(tables.lake, f"select count(*), max(hash({name})) from {name}")


def _by_table(tables: Tables, name: str) -> None:
    with workbench() as connection:
        attach_slice(connection, tables, name, WORKLOAD)
        connection.execute(f"select count(*), max(hash({name})) from {name}").fetchall()


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, error = process.communicate(timeout=300)
    if process.returncode:
        raise RuntimeError(f"a process of the benchmark ended with {process.returncode}: {error[-2000:]}")
    return json.loads(out.strip().splitlines()[-1])


def contents(lake: Path) -> dict[str, Counter[tuple]]:
    """Every table's rows, as a multiset."""
    tables, found = Tables(LakeLayout.open(lake)), {}
    with workbench() as connection:
        for name in TABLES:
            attach_slice(connection, tables, name, WORKLOAD)
            found[name] = Counter(map(repr, connection.execute(f"select * from {name}").fetchall()))
    return found


def disturbed(place: Place, home: Path, kills: int, size: int) -> dict[str, Any]:
    draw, lake = random.Random(SEED), home / "disturbed"
    place.put(portion(0, size))
    first = child(place, "--ingest", str(lake), place.root)
    began = time.monotonic()
    first.stdout.readline()
    began = time.monotonic()
    finished(first)
    span = time.monotonic() - began
    reader = child(place, "--read", str(lake))
    done, at = 0, 0
    while done < kills:
        at += 1
        place.put(portion(at, size))
        process = child(place, "--ingest", str(lake), place.root)
        process.stdout.readline()
        try:
            process.wait(draw.uniform(0, span))
        except subprocess.TimeoutExpired:
            process.kill()
            done += 1
        process.communicate()
    report = finished(child(place, "--ingest", str(lake), place.root))
    again = finished(child(place, "--ingest", str(lake), place.root))
    reader.send_signal(signal.SIGTERM)
    seen = finished(reader)
    finished(child(place, "--ingest", str(home / "undisturbed"), place.root))
    ours, wanted = contents(lake), contents(home / "undisturbed")
    differing = {name: (wanted[name] - ours[name], ours[name] - wanted[name]) for name in TABLES}
    for name, (lost, invented) in differing.items():
        for row in [*list(lost)[:2], *list(invented)[:2]]:
            print(f"differs in {name}: {'lost' if row in lost else 'not in the undisturbed run'}: {row[:400]}")
    for error in seen["errors"][:5]:
        print(f"the reader: {error}")
    return {
        "kills": done,
        "reader_errors": len(seen["errors"]),
        "lost_rows": sum(len(a) + len(b) for a, b in differing.values()),
        "reader_queries": seen["queries"],
        "read_after_the_last_kill": sum(report["total"].values()),
        "read_again": sum(again["total"].values()),
        "portions": at + 1,
        **{name: sum(rows.values()) for name, rows in wanted.items()},
    }


@contextmanager
def places(quick: bool, home: Path) -> Iterator[list[tuple[str, Place]]]:
    local = ("file", Place(str(home / "logs")))
    if quick:
        yield [local]
        return
    with s3_server() as server:
        server.bucket("faults")
        yield [local, ("s3", Place("s3://faults", server.environment, server))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ingest", nargs=2, metavar=("LAKE", "ROOT"), help=argparse.SUPPRESS)
    parser.add_argument("--read", metavar="LAKE", type=Path, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.ingest:
        return ingest_now(Path(words.ingest[0]), words.ingest[1])
    if words.read:
        return read_all_the_while(words.read)
    figures: dict[str, Any] = {"kills": 0, "reader_errors": 0, "lost_rows": 0}
    with tempfile.TemporaryDirectory(prefix="millrace-faults-") as folder, places(words.quick, Path(folder)) as chosen:
        for name, place in chosen:
            os.environ.update(place.environment)
            found = disturbed(place, Path(folder) / name, kills=6 if words.quick else 20, size=200 if words.quick else 800)
            print(f"{name}: {json.dumps(found)}")
            figures[name] = found
            for key in ("kills", "reader_errors", "lost_rows"):
                figures[key] += found[key]
    record("ingest_faults", figures, keep=not words.quick)


if __name__ == "__main__":
    main()
