"""From a release to its log lines.

    python -m benchmarks.lineage              # 1,000,000 log lines, some minutes to make them
    python -m benchmarks.lineage --quick      # 20,000 log lines, seconds

A lake of 30 days whose every row is in a training set, from which a model, a quantized model and a release were made.
seconds: the fastest of three times `from log_lines_in('lines/release')`, all rows read as Arrow by a locked connection, as
`millrace.open(lake).sql` reads them: artefact, dataset, split, row, interaction, source, object, line, user, time. cpu_s:
seconds of all cores for one of them. rows: rows of that answer. count_s: only their number and that of users, as `millrace
lineage` prints them; first_page_s: the first 200 rows.
"""

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.record import record
from resources.artefacts.registry import Registry
from resources.catalog.build import publish
from resources.catalog.catalog import Page, ask, log_lines_of, query
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.manifests.manifest import Input, Manifest

WORKLOAD = "lines"
DAYS = 30
FIRST = date(2026, 6, 1)
MOST_SECONDS = 2.0
LISTED = f"from log_lines_in('{WORKLOAD}/release')"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    count = 20_000 if given.quick else 1_000_000
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        lake = LakeLayout.open(Path(folder) / "lake")
        ids = _log_lines(lake, count)
        _artefacts(lake, ids)
        publish_s = _seconds(lambda: publish(lake))
        listed = query(lake, LISTED).num_rows
        assert listed == count, f"{listed} log lines were found, and {count} are in the release"
        before = time.process_time()
        seconds = min(_seconds(lambda: query(lake, LISTED)) for _ in range(3))
        cpu_s = (time.process_time() - before) / 3
        count_s = _seconds(lambda: log_lines_of(lake, f"{WORKLOAD}/release"))
        page_s = _seconds(lambda: _first_page(lake))
    record(
        "lineage",
        {
            "seconds": round(seconds, 3),
            "rows": listed,
            "holds": seconds < MOST_SECONDS,
            "cpu_s": round(cpu_s, 3),
            "count_s": round(count_s, 3),
            "first_page_s": round(page_s, 3),
            "publish_s": round(publish_s, 2),
            "peak_memory_mb": round(psutil.Process().memory_info().rss / 2**20),
        },
        keep=not given.quick,
    )


def _log_lines(lake: LakeLayout, count: int) -> list[str]:
    """Writes `interactions`, a file for each day, and returns their ids."""
    tables, ids = Tables(lake), []
    each = count // DAYS + 1
    for number in range(DAYS):
        day, rows = FIRST + timedelta(days=number), []
        for place in range(number * each, min((number + 1) * each, count)):
            ids.append(hashlib.sha256(str(place).encode()).hexdigest())
            rows.append(_row(day, place, ids[-1]))
        table = pa.Table.from_pylist(rows, schema=SCHEMAS["interactions"])
        tables.replace("interactions", table, workload=WORKLOAD, dt=[day])
    return ids


def _row(day: date, place: int, identifier: str) -> dict[str, Any]:
    user = hashlib.sha256(f"u{place % 5_000}".encode()).hexdigest()
    question = f"Question {place}: {identifier[:40]} " * 8
    return {
        "workload": WORKLOAD,
        "dt": day,
        "interaction_id": identifier,
        "request_id": f"chatcmpl-{place}",
        "choice_index": 0,
        "ts": datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(seconds=place % 86_400),
        "source": "gateway",
        "source_format": "openai_pairs",
        "source_uri": f"s3://logs/gateway/dt={day}/part-{place % 40:04d}.jsonl.gz",
        "source_row": place,
        "session_id": f"session-{place // 3}",
        "user_hash": user,
        "model": "gpt-5",
        "messages": json.dumps([{"role": "user", "content": question}]),
        "status": "success",
        "completion": json.dumps({"role": "assistant", "content": f"Answer {place}"}),
        "content_sha256": identifier,
    }


def _artefacts(lake: LakeLayout, ids: list[str]) -> None:
    """A training set of every row, and what was made from it: a model, a quantized model, a release."""
    rows = pa.table(
        {
            "row_id": ids,
            "origin": pa.repeat("interaction", len(ids)),
            "session_id": [f"session-{n // 3}" for n in range(len(ids))],
            "interaction_ids": pa.array([[identifier] for identifier in ids], pa.list_(pa.string())),
        }
    )
    table = Input(kind="table", name="interactions", digest=hashlib.sha256(b"rows").hexdigest())
    dataset = _finish(lake, "dataset", "sft_dataset", [table], lambda home: pq.write_table(rows, home / "train.parquet"))
    model = _finish(lake, "model", "sft_model", [dataset.as_input()], _weights)
    quantized = _finish(lake, "model", "quantized_model", [model.as_input(), dataset.as_input()], _weights)
    _finish(lake, "release", "release", [quantized.as_input()], lambda home: (home / "release.json").write_text("{}"))


def _weights(home: Path) -> None:
    (home / "config.json").write_text("{}")


def _finish(lake: LakeLayout, kind: Any, name: str, inputs: list[Input], fill: Callable[[Path], Any]) -> Manifest:
    registry = Registry(lake, WORKLOAD)
    draft = registry.draft(kind, name, name, ("benchmarks/lineage.py",), {}, inputs)
    fill(draft.directory)
    return registry.finish(draft, {})


def _first_page(lake: LakeLayout) -> int:
    with ask(lake, LISTED) as answer:
        return sum(batch.num_rows for batch in Page(answer, limit=200).batches)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
