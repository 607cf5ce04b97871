"""What a new day costs on top of thirty old ones: its per-row work, and the one pass over everything.

    python -m benchmarks.new_day              # 31 days of 6,500 rows, a few minutes
    python -m benchmarks.new_day --quick      # 31 days of 650 rows, under a minute

Traffic: benchmarks/clean.py's, and of every hundred rows three that repeat an earlier one and four that repeat one with a
few words changed; three evaluation suites of 500 items, ten items of them planted in the traffic.

ratio: seconds to clean the new day (status, personal data, quality, signatures, commit) in the lake of thirty days, over
seconds to clean the same rows in an empty lake; both three times by turns, the fastest of each. grouping_s_per_100k: seconds of
`resources.curating.selection` over all 31 days after that, scaled to 100,000 rows: it reads the tables, searches the new day
for evaluation items (the old ones were searched before), bands and verifies, decides, and writes
curated.parquet and the decisions. grouping_first_s_per_100k: the same where no day was searched before. parts: where its
time goes. digest_s_per_100k: the digest of the cleaned rows that an asset computes before it.
"""

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.clean import WORKLOAD, traffic
from benchmarks.record import record
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.decontamination import EVAL_ITEMS
from resources.curating.selection import curate
from resources.digests.slices import slice_digest
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables

DAYS = 31
PARTS = {"decontamination": "_decontaminate", "near_duplicates": "_find_near_duplicates", "curated_rows": "write_rows"}
SETTINGS = CurationSettings()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    rows = _rows((650 if given.quick else 6_500) * DAYS)
    days = sorted(pc.unique(rows["dt"]).to_pylist())
    newest = rows.filter(pc.equal(rows["dt"], days[-1]))
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        home = Path(folder)
        items = _items(rows, home / "items.parquet")
        lake = Tables(LakeLayout.open(home / "lake"))
        for day in days:
            lake.replace("interactions", rows.filter(pc.equal(rows["dt"], day)), workload=WORKLOAD, dt=[day])
        clean(lake, WORKLOAD, days[:-1], SETTINGS)
        curate(lake, WORKLOAD, home / "before", SETTINGS, items)
        first, new = [], []
        for turn in range(3):
            empty = Tables(LakeLayout.open(home / f"empty-{turn}"))
            empty.replace("interactions", newest, workload=WORKLOAD, dt=days[-1:])
            first.append(_seconds(lambda tables=empty: clean(tables, WORKLOAD, days[-1:], SETTINGS)))
            new.append(_seconds(lambda: clean(lake, WORKLOAD, days[-1:], SETTINGS)))
        parts: dict[str, float] = {}
        with _timed_parts(parts):
            grouping = _seconds(lambda: curate(lake, WORKLOAD, home / "after", SETTINGS, items))
        report = curate(lake, WORKLOAD, home / "again", SETTINGS, items)
        lake.replace("contamination", SCHEMAS["contamination"].empty_table(), workload=WORKLOAD)
        grouping_first = _seconds(lambda: curate(lake, WORKLOAD, home / "first", SETTINGS, items))
        digest = _seconds(lambda: slice_digest(lake, "cleaned_interactions", WORKLOAD))
    per_100k = 100_000 / len(rows)
    record(
        "new_day",
        {
            "ratio": round(min(new) / min(first), 3),
            "grouping_s_per_100k": round(grouping * per_100k, 2),
            "grouping_first_s_per_100k": round(grouping_first * per_100k, 2),
            "digest_s_per_100k": round(digest * per_100k, 2),
            "parts_s_per_100k": {name: round(seconds * per_100k, 2) for name, seconds in parts.items()},
            "first_day_s": round(min(first), 2),
            "new_day_s": round(min(new), 2),
            "grouping_s": round(grouping, 2),
            "rows": len(rows),
            "rows_of_the_new_day": len(newest),
            "days": len(days),
            "megabytes": round(sum(rows[name].nbytes for name in ("messages", "completion")) / 1e6, 1),
            "read": report.read,
            "kept": report.rows,
            "dropped": report.dropped,
            "suites": report.suites,
            "peak_memory_mb": round(psutil.Process().memory_info().rss / 2**20),
        },
        keep=not given.quick,
    )


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@contextmanager
def _timed_parts(seconds: dict[str, float]):
    """Adds up the time spent in the steps of the grouping pass."""
    module = sys.modules[curate.__module__]
    with ExitStack() as stack:
        for name, function in PARTS.items():
            original = getattr(module, function)

            def timed(*words, _name=name, _original=original, **named):
                began = time.perf_counter()
                try:
                    return _original(*words, **named)
                finally:
                    seconds[_name] = seconds.get(_name, 0.0) + time.perf_counter() - began

            stack.enter_context(mock.patch.object(module, function, timed))
        yield


def _rows(wanted: int) -> pa.Table:
    """Interactions of 31 days; 3 % of them repeat an earlier one, 4 % nearly do."""
    draw = random.Random(7)
    table = pa.concat_tables(traffic(wanted, DAYS))
    messages, completions = table["messages"].to_pylist(), table["completion"].to_pylist()
    ids = table["interaction_id"].to_pylist()
    for row in draw.sample(range(wanted // 10, wanted), wanted * 7 // 100):
        source = draw.randrange(row)
        answer = json.loads(completions[source])
        if draw.random() < 4 / 7 and answer.get("content"):
            words = answer["content"].split(" ")
            for _ in range(max(1, len(words) // 50)):
                words[draw.randrange(len(words))] = f"edit{row}"
            answer["content"] = " ".join(words)
        messages[row], completions[row] = messages[source], json.dumps(answer)
    changed = [
        hashlib.sha256(f"{one}{two}{three}".encode()).hexdigest()
        for one, two, three in zip(ids, messages, completions, strict=True)
    ]
    for name, values in (("messages", messages), ("completion", completions), ("content_sha256", changed)):
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values, pa.string()))
    return table


def _items(rows: pa.Table, path: Path) -> Path:
    """Three suites of 500 items; ten of them are questions of the traffic."""
    draw = random.Random(9)
    words = [f"{a}{b}{c}" for a in "bdfgklm" for b in "aeiou" for c in "nrst"]
    items = [
        {
            "suite": f"suite-{number % 3}",
            "item_id": str(number),
            "prompt": " ".join(draw.choices(words, k=60)),
            "answer": " ".join(draw.choices(words, k=30)),
        }
        for number in range(1_500)
    ]
    for number in range(10):
        told = json.loads(rows["messages"][number * (len(rows) // 10)].as_py())
        items[number]["prompt"] = told[-1]["content"]
    pq.write_table(pa.Table.from_pylist(items, schema=EVAL_ITEMS), path)
    return path


if __name__ == "__main__":
    main()
