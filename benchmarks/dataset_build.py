"""Building a supervised dataset, against the same joins written plainly in DuckDB.

    python -m benchmarks.dataset_build                # 200,000 rows out of 1,000,000 curated ones
    python -m benchmarks.dataset_build --quick        # 10,000 out of 50,000

Traffic: benchmarks/clean.py's, as curated rows. Each side runs in a process of its own, three times by turns (once with
--once); the fastest counts. dataset_build.sql is the plain side: every answer's position by a hash of the messages before it,
rows that a later row of the session contains, splits by hash of the session, a sample by source and shape, three Parquet files.
It marks no answers, searches no copies in held-out rows, decides on no row and writes no card.

ratio: seconds of `build_sft_dataset` over seconds of the plain side. peak_mib, plain_peak_mib: memory of the processes.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.clean import traffic
from benchmarks.record import record
from resources.composing.dataset_settings import DatasetSettings
from resources.composing.datasets import build_sft_dataset

PLAIN = Path(__file__).with_suffix(".sql")
NO_TEXT = {name: pa.string() for name in ("user_hash", "reasoning", "request", "text", "language", "normalised_sha256")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--once", action="store_true", help="one turn instead of three")
    parser.add_argument("--side", choices=("ours", "plain"), help="run one side on --curated: what the benchmark starts")
    parser.add_argument("--curated", type=Path)
    parser.add_argument("--wanted", type=int)
    given = parser.parse_args()
    if given.side:
        _run(given.side, given.curated, given.wanted)
        return
    curated, wanted = (50_000, 10_000) if given.quick else (1_000_000, 200_000)
    found: dict[str, list[dict[str, float]]] = {"ours": [], "plain": []}
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        path = Path(folder) / "curated.parquet"
        rows = _write(path, curated)
        for _ in range(1 if given.once else 3):
            for side, turns in found.items():
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.dataset_build",
                    "--side",
                    side,
                    "--curated",
                    str(path),
                    "--wanted",
                    str(wanted),
                ]
                turns.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    best = {side: min(turn["seconds"] for turn in turns) for side, turns in found.items()}
    record(
        "dataset_build",
        {
            "ratio": round(best["ours"] / best["plain"], 3),
            "peak_mib": max(turn["peak_mib"] for turn in found["ours"]),
            "seconds": round(best["ours"], 2),
            "plain_seconds": round(best["plain"], 2),
            "plain_peak_mib": max(turn["peak_mib"] for turn in found["plain"]),
            "curated_rows": rows,
            "rows": found["ours"][0]["rows"],
            "plain_rows": found["plain"][0]["rows"],
        },
        keep=not given.quick,
    )


def _write(path: Path, wanted: int) -> int:
    """Writes traffic as curated rows and returns their number."""
    written, writer = 0, None
    for table in traffic(wanted):
        shapes = pa.array([f"shape{number % 40}" for number in range(len(table))])
        columns = {
            name: table[name]
            for name in (
                "interaction_id",
                "workload",
                "dt",
                "ts",
                "source",
                "session_id",
                "messages",
                "tools",
                "completion",
                "content_sha256",
            )
        }
        empty = {
            name: pa.nulls(len(table), kind)
            for name, kind in {
                **NO_TEXT,
                "feedback": pa.float64(),
                "quality": pa.float64(),
                "difficulty": pa.float64(),
                "token_ids": pa.list_(pa.int32()),
                "labels": pa.list_(pa.int32()),
                "signature": pa.list_(pa.int32()),
            }.items()
        }
        rows = pa.table({**columns, **empty, "prompt_shape": shapes, "was_cut": pa.array([False] * len(table))})
        writer = writer or pq.ParquetWriter(path, rows.schema, compression="zstd")
        writer.write_table(rows)
        written += len(rows)
    writer.close()
    return written


def _run(side: str, curated: Path, wanted: int) -> None:
    """Runs one side and prints seconds, memory and training rows."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        began = time.perf_counter()
        if side == "ours":
            build_sft_dataset(curated, None, Path(folder), DatasetSettings(max_rows=wanted))
        else:
            with duckdb.connect(config={"temp_directory": folder}) as connection:
                connection.execute(PLAIN.read_text().format(curated=curated, output=folder, wanted=wanted))
        seconds = time.perf_counter() - began
        rows = pq.read_metadata(Path(folder) / "train.parquet").num_rows
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"seconds": seconds, "peak_mib": peak, "rows": rows}))


if __name__ == "__main__":
    main()
