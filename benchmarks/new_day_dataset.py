"""What a new day's dataset version costs on 30 old days, and on 1,000.

    python -m benchmarks.new_day_dataset              # 62,000 rows in each lake, several minutes
    python -m benchmarks.new_day_dataset --quick      # 6,200 rows

Both lakes hold the same number of rows, once over 30 days and once over 1,000, and one more day that is as large in both. The
old days' dataset was made before. Timed, three times by turns, the fastest of each: from the new day's cleaned rows to the
finished dataset version, which is the digests of the tables (a day's digest is remembered, so the new day alone is read), one
pass of curation over all rows, and the dataset with its card.

ratio: seconds on 1,000 days over seconds on 30. digest_ratio: the same of the digests, which name the version and say what has
to be made again. seconds_30, seconds_1000: of all steps; digest_30, digest_1000: of the digests alone. unchanged_1000: seconds
to find out that nothing changed: digests of 1,001 known days.
"""

import argparse
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.clean import START, WORKLOAD, traffic
from benchmarks.record import record
from resources.composing.dataset_settings import DatasetSettings
from resources.composing.datasets import build_sft_dataset
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.selection import curate
from resources.digests.slices import slice_digest
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables

SETTINGS = CurationSettings()
TABLES = ("cleaned_interactions", "interactions", "feedback")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    wanted = 6_200 if given.quick else 62_000
    rows = pa.concat_tables(traffic(wanted, 1))
    of_new_day = len(rows) // 31
    seconds: dict[int, list[dict[str, float]]] = {30: [], 1_000: []}
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        lakes = {days: _prepared(Path(folder) / str(days), rows, of_new_day, days) for days in seconds}
        for turn in range(3):
            for days, tables in lakes.items():
                seconds[days].append(_new_version(tables, Path(folder) / f"{days}-{turn}"))
        for name in TABLES:
            slice_digest(lakes[1_000], name, WORKLOAD)
        began = time.perf_counter()
        for name in TABLES:
            slice_digest(lakes[1_000], name, WORKLOAD)
        unchanged = time.perf_counter() - began
    best = {days: {name: min(each[name] for each in turns) for name in turns[0]} for days, turns in seconds.items()}
    record(
        "new_day_dataset",
        {
            "ratio": round(best[1_000]["all"] / best[30]["all"], 3),
            "digest_ratio": round(best[1_000]["digest"] / best[30]["digest"], 3),
            "seconds_30": round(best[30]["all"], 2),
            "seconds_1000": round(best[1_000]["all"], 2),
            "digest_30": round(best[30]["digest"], 3),
            "digest_1000": round(best[1_000]["digest"], 3),
            "unchanged_1000": round(unchanged, 3),
            "rows": len(rows),
            "rows_of_the_new_day": of_new_day,
        },
        keep=not given.quick,
    )


def _prepared(home: Path, rows: pa.Table, of_new_day: int, days: int) -> Tables:
    """A lake of `days` old days, whose digests are remembered, and a new day that was cleaned and not yet looked at."""
    tables = Tables(LakeLayout.open(home))
    old, new = rows.slice(0, len(rows) - of_new_day), rows.slice(len(rows) - of_new_day)
    tables.append("interactions", _dated(old, np.arange(len(old)) * days // len(old)))
    old_days = sorted(tables.rows_by_day("interactions", WORKLOAD))
    clean(tables, WORKLOAD, old_days, SETTINGS)
    for name in TABLES:
        slice_digest(tables, name, WORKLOAD)
    tables.append("interactions", _dated(new, np.full(len(new), days)))
    clean(tables, WORKLOAD, [START.date() + timedelta(days=days)], SETTINGS)
    return tables


def _dated(rows: pa.Table, days: np.ndarray) -> pa.Table:
    """The rows on other days."""
    dates: list[date] = [START.date() + timedelta(days=int(day)) for day in days]
    return rows.set_column(rows.schema.get_field_index("dt"), "dt", pa.array(dates, pa.date32()))


def _new_version(tables: Tables, output: Path) -> dict[str, float]:
    """Seconds of the digests and of all steps."""
    began = time.perf_counter()
    for name in TABLES:
        slice_digest(tables, name, WORKLOAD, remember=False)
    digested = time.perf_counter() - began
    curate(tables, WORKLOAD, output / "curated", SETTINGS, None)
    build_sft_dataset(output / "curated" / "curated.parquet", None, output / "sft_dataset", DatasetSettings(), tables)
    return {"digest": digested, "all": time.perf_counter() - began}


if __name__ == "__main__":
    main()
