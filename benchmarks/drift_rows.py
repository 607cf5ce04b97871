"""How long the comparison of a new day takes in a lake with a million cleaned rows.

    python -m benchmarks.drift_rows                # 1,000,000 rows on 35 days, about 5 minutes
    python -m benchmarks.drift_rows --quick        # 50,000 rows; nothing is recorded

Rows are made: sessions of 1 to 8 turns whose requests repeat their history, 200 prompt shapes, prompts of 60 words from 5,000.
Only the comparison is timed: first run (reference of 28 days and 7 days after it), then one more day. Seconds of the processor
depend less on what else the machine does.
"""

import argparse
import json
import tempfile
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.record import record
from resources.drifting.drift import compare_traffic
from resources.drifting.session_counts import DriftInputs
from resources.drifting.settings import DriftSettings
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables

WORKLOAD, ROWS, QUICK_ROWS, DAYS, FIRST = "drift", 1_000_000, 50_000, 35, date(2026, 1, 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows; nothing is recorded")
    given = parser.parse_args()
    count = QUICK_ROWS if given.quick else ROWS
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        tables = Tables(LakeLayout.open(Path(folder) / "lake"))
        made = [_store(tables, FIRST + timedelta(day), count // DAYS, rng) for day in range(DAYS)]
        first = _timed(tables, FIRST + timedelta(DAYS))
        made.append(_store(tables, FIRST + timedelta(DAYS), count // DAYS, rng))
        day = _timed(tables, FIRST + timedelta(DAYS + 1))
    record("drift_rows", {"rows": sum(made), "days": DAYS, "first_run": first, "new_day": day}, keep=not given.quick)


def _timed(tables: Tables, today: date) -> dict[str, Any]:
    began, used = time.perf_counter(), time.process_time()
    now = datetime(today.year, today.month, today.day, tzinfo=UTC)
    report = compare_traffic(tables, WORKLOAD, DriftSettings(), DriftInputs(), now=now)
    return {
        "seconds": round(time.perf_counter() - began, 1),
        "processor_seconds": round(time.process_time() - used, 1),
        "compared_days": len(report.days),
        "alarms": sum(row["alarm"] for row in report.rows),
    }


def _store(tables: Tables, day: date, count: int, rng: np.random.Generator) -> int:
    """One day of at least `count` rows; returns how many."""
    words = np.array([f"word{place}" for place in range(5_000)])
    rows: list[dict[str, Any]] = []
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    while len(rows) < count:
        session, messages = f"{day}-{len(rows)}", []
        for _ in range(rng.integers(1, 9)):
            prompt = " ".join(words[(5_000 * rng.random(60) ** 3).astype(int)])
            messages.append({"role": "user", "content": prompt})
            text, number = json.dumps(messages), len(rows)
            answer = {"role": "assistant", "content": prompt[:200]}
            rows.append(
                {
                    "workload": WORKLOAD,
                    "dt": day,
                    "ts": noon,
                    "interaction_id": f"{day}-{number}",
                    "content_sha256": f"{day}-{number}",
                    "session_id": session,
                    "source": "made",
                    "messages": text,
                    "completion": json.dumps(answer),
                    "status": "ok",
                    "language": "en",
                    "prompt_characters": len(text),
                    "completion_characters": 200,
                    "prompt_shape": f"ask#{rng.integers(200)}",
                }
            )
            messages.append(answer)
    tables.append("cleaned_interactions", pa.Table.from_pylist(rows, SCHEMAS["cleaned_interactions"]))
    return len(rows)


if __name__ == "__main__":
    main()
