"""Ingest against a lower bound: DuckDB alone reads the same files as JSON and writes zstd Parquet.

    python -m benchmarks.ingest                 # 1,000,000 pairs, 40 gzip files over 10 days: about 5 minutes on 2 cores
    python -m benchmarks.ingest --quick         # 40,000 pairs
    python -m benchmarks.ingest --logs DIR      # logs of an earlier run (written there where it is empty)

The ingest does what DuckDB alone does not: line numbers, quarantine, checks, ids, content hashes, one row per choice, the
repeat check, the ledger. Each runs in a process of its own: DuckDB, ingest, DuckDB again (its mean counts), so that a
machine that slows down on the way does not favour one of them. `again` is a second ingest with nothing new to read, and
`late` one of a further file on top of what is there. Memory is the process's peak, its children's added.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import psutil

from benchmarks.pairs import write_pairs
from benchmarks.record import record

ROWS, QUICK_ROWS = 1_000_000, 40_000
LATE_DAY = date(2026, 6, 11)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows instead of {ROWS}; nothing is recorded")
    parser.add_argument("--rows", type=int, help="another number of rows; nothing is recorded")
    parser.add_argument("--logs", type=Path, help="where the logs are kept for another run")
    parser.add_argument("--step", choices=["duckdb", "ingest"], help=argparse.SUPPRESS)
    parser.add_argument("--lake", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        print(json.dumps(_duckdb(given.logs, given.lake) if given.step == "duckdb" else _ingest(given.logs, given.lake)))
        return
    rows = given.rows or (QUICK_ROWS if given.quick else ROWS)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        logs = given.logs or Path(folder) / "logs"
        if not any(logs.rglob("*.gz")):
            write_pairs(logs, rows)
        read, late = Path(folder) / "read", Path(folder) / "late"
        read.symlink_to(logs.resolve())
        interactions = _expected(logs)
        first = _measured("duckdb", read, Path(folder) / "duckdb")
        ours = _measured("ingest", read, Path(folder) / "lake")
        second = _measured("duckdb", read, Path(folder) / "duckdb")
        if ours["kept"] != interactions or ours["read"] != interactions:
            raise SystemExit(f"{interactions} interactions were written, but {ours['read']} read and {ours['kept']} kept")
        again = _measured("ingest", read, Path(folder) / "lake")
        write_pairs(late, max(rows // 40, 1), days=1, files_per_day=1, seed=2, first_day=LATE_DAY)
        added = _measured("ingest", late, Path(folder) / "lake")
        duckdb_seconds = (first["seconds"] + second["seconds"]) / 2
        record(
            "ingest",
            {
                "ratio": round(ours["seconds"] / duckdb_seconds, 2),
                "peak_mib": round(ours["peak_mib"]),
                "rows": rows,
                "interactions": interactions,
                "log_bytes": sum(path.stat().st_size for path in logs.rglob("*.gz")),
                "table_bytes": ours["bytes"],
                "duckdb_bytes": second["bytes"],
                "seconds": {
                    "duckdb": [round(first["seconds"], 1), round(second["seconds"], 1)],
                    "ingest": round(ours["seconds"], 1),
                    "again": round(again["seconds"], 1),
                    "late": round(added["seconds"], 1),
                },
                "cpu_seconds": {"duckdb": round(second["cpu_seconds"], 1), "ingest": round(ours["cpu_seconds"], 1)},
                "late_rows": added["kept"],
                "rows_per_second": round(rows / ours["seconds"]),
                "duckdb_peak_mib": round(max(first["peak_mib"], second["peak_mib"])),
            },
            keep=rows == ROWS,
        )


def _measured(step: str, logs: Path, lake: Path) -> dict:
    """Runs one step in a process of its own; returns its report, and the peak memory of it and its children."""
    command = [sys.executable, "-m", "benchmarks.ingest", "--step", step, "--logs", str(logs), "--lake", str(lake)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        watched, peak = psutil.Process(process.pid), 0
        while process.poll() is None:
            try:
                family = [watched, *watched.children(recursive=True)]
                peak = max(peak, sum(each.memory_info().rss for each in family))
            except psutil.NoSuchProcess:  # one of them ended while it was looked at
                continue
            time.sleep(0.02)
        output = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"the step {step} ended with {process.returncode}")
    return {**json.loads(output.splitlines()[-1]), "peak_mib": peak / 2**20}


def _expected(logs: Path) -> int:
    import duckdb

    return duckdb.execute(
        "select sum(greatest(coalesce(len(response.choices), 0), 1)) from read_json($files)", {"files": f"{logs}/**/*.gz"}
    ).fetchall()[0][0]


def _duckdb(logs: Path, folder: Path) -> dict:
    import duckdb

    folder.mkdir(exist_ok=True)
    began, used = time.monotonic(), time.process_time()
    with duckdb.connect() as connection:
        connection.execute(
            f"copy (select * from read_json('{logs}/**/*.gz')) to '{folder}/pairs.parquet' (format parquet, compression zstd)"
        )
    seconds, cpu = time.monotonic() - began, time.process_time() - used
    return {"seconds": seconds, "cpu_seconds": cpu, "bytes": (folder / "pairs.parquet").stat().st_size}


def _ingest(logs: Path, folder: Path) -> dict:
    from resources.lake.lake import LakeLayout
    from resources.lake.tables import Tables
    from resources.reading.ingestion import ingest
    from resources.sources.sources import SourceSettings

    tables = Tables(LakeLayout.open(folder))
    began, used = time.monotonic(), time.process_time()
    total = ingest(tables, "benchmark", {"gateway": SourceSettings(uri=str(logs))}).total
    seconds, cpu = time.monotonic() - began, time.process_time() - used
    table = tables.open("interactions")
    size = sum(Path(file).stat().st_size for file in table.file_uris())
    return {"seconds": seconds, "cpu_seconds": cpu, "kept": total.rows, "read": total.read, "bytes": size}


if __name__ == "__main__":
    main()
