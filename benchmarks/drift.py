"""How many days until a change of the traffic alarms, and how many quiet days alarm, on resampled real conversations.

    python -m benchmarks.drift DIR                # about 8 minutes
    python -m benchmarks.drift DIR --quick        # 30 quiet days, one pair of workloads; nothing is recorded

DIR holds real conversations (see benchmarks/curation_peers.py). Three workloads are read and cleaned by the pipeline: math
(gsm8k: one question each), airline (an agent's conversations with tool calls), chat (trees of OpenAssistant). A day is a draw
of whole sessions of one workload, with replacement: about 200 on a weekday and 100 at the weekend, with lognormal noise, and
at the weekend longer sessions are likelier, so the days of the week differ in what they hold. Half of a workload's sessions
are only drawn for the vocabulary days of the reference.

A run is a reference window of 28 days and the days after it. delay_days: from some day on, a share of the sessions comes from
another workload; days until the first alarm, 1 being the end of the first such day, on average over all pairs of workloads and
repeats (a run without an alarm counts as MOST_DAYS). false_alarms_per_1000_days: days with any alarm where nothing changed.
acceptance: the same for a fall by 5 % of the hourly acceptance length, with a cycle of the day and autocorrelated noise, whose
share of the stated rate is half. Settings are the recipe's defaults: bounds come from the stated rate alone.
"""

import argparse
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.curation_peers import FILES, conversations, write_pairs
from benchmarks.record import record
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.drifting.acceptance_chart import HourlyDrafts, acceptance
from resources.drifting.compare import WindowComparison
from resources.drifting.permutation import Columns
from resources.drifting.session_counts import DriftInputs, SessionCounts
from resources.drifting.settings import DriftSettings, Reference
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings

WORKLOAD = "drift"
KINDS = {"gsm8k": "math", "airline": "airline", "tree": "chat"}
"""Beginning of a session's id -> its workload."""
SHARES = (0.05, 0.10, 0.25, 0.50)
SESSIONS, WEEKEND, NOISE, LONGER_AT_WEEKENDS = 200, 0.5, 0.15, 0.3
QUIET_DAYS, DAYS_A_RUN, REPEATS, MOST_DAYS, WORKERS = 1_000, 84, 2, 14, 6
FIRST = date(2026, 1, 5)
POOL_DAY, VOCABULARY_DAY = date(2025, 1, 1), date(2025, 2, 1)
TAU, CYCLE, DEVIATION, CORRELATION, DRAFTS, DROP = 2.5, 0.12, 0.03, 0.5, 8_000, 0.05


@dataclass(frozen=True)
class Pools:
    """Counts [sessions, columns] of each workload under one workload's vocabulary, and the rows of each session."""

    columns: list[Columns]
    counts: dict[str, np.ndarray]


_POOLS: dict[str, Pools] = {}
"""Of this run: processes that are forked read it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the folder with real conversations")
    parser.add_argument("--quick", action="store_true", help="30 quiet days, one pair of workloads; nothing is recorded")
    given = parser.parse_args()
    missing = [name for name in FILES if not (given.data / name).is_file()]
    if missing:
        raise SystemExit(f"Not measured: {given.data} has no {', '.join(missing)}.")
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        pools = _pools(given.data, Path(folder))
    record("drift", measured(pools, given.quick), keep=not given.quick)


def measured(pools: dict[str, Pools], quick: bool) -> dict[str, Any]:
    """All figures. pools: by the workload that is served."""
    settings = DriftSettings()
    global _POOLS
    _POOLS = pools
    pairs = [(served, other) for served in pools for other in pools if other != served][: 1 if quick else None]
    lengths = [min(DAYS_A_RUN, QUIET_DAYS - first) for first in range(0, QUIET_DAYS, DAYS_A_RUN)] if not quick else [30]
    with ProcessPoolExecutor(WORKERS, get_context("fork")) as workers:
        running = workers.map(_quiet, range(len(lengths)), lengths)
        delays_of = list(workers.map(_delays, *zip(*pairs, strict=True), [1 if quick else REPEATS] * len(pairs)))
        quiet = list(running)
    alarms, days = sum(found for found, _ in quiet), sum(lengths)
    by_test = dict(sum((tests for _, tests in quiet), Counter()))
    delays: dict[float, list[int]] = {share: [] for share in SHARES}
    by_pair: dict[str, dict[str, float]] = {}
    for pair, found in delays_of:
        for share in SHARES:
            delays[share] += found[share]
        by_pair[pair] = {f"{share:.2f}": round(float(np.mean(found[share])), 2) for share in SHARES}
    return {
        "delay_days": {f"{share:.2f}": round(float(np.mean(found)), 2) for share, found in delays.items()},
        "false_alarms_per_1000_days": round(1_000 * alarms / days, 2),
        "quiet_days": days,
        "false_alarms": alarms,
        "false_alarms_by_test": by_test,
        "longest_delay_days": {f"{share:.2f}": max(found) for share, found in delays.items()},
        "delay_days_by_pair": by_pair,
        "runs_of_a_share": len(delays[SHARES[0]]),
        "without_an_alarm": {f"{share:.2f}": sum(day >= MOST_DAYS for day in found) for share, found in delays.items()},
        "acceptance": _acceptance(settings, 1 if quick else 12),
    }


def _quiet(run: int, days: int) -> tuple[int, Counter[str]]:
    """Days with an alarm of one run of quiet days, which has a reference window of its own; and the tests that alarmed."""
    served = list(_POOLS)[run % len(_POOLS)]
    traffic = _Traffic(_POOLS[served], served, np.random.default_rng([7, run]), DriftSettings())
    found = [traffic.next_day() for _ in range(days)]
    alarms = sum(bool(tests) for tests in found)
    print(f"{served}: {days} quiet days, {alarms} with an alarm", flush=True)
    return alarms, Counter(test for tests in found for test in tests)


def _delays(served: str, other: str, repeats: int) -> tuple[str, dict[float, list[int]]]:
    """Days until the first alarm by share, one for each reference window, if the change begins right after it."""
    found: dict[float, list[int]] = {share: [] for share in SHARES}
    for repeat in range(repeats):
        rng = np.random.default_rng([11, repeat, *map(ord, served + other)])
        traffic = _Traffic(_POOLS[served], served, rng, DriftSettings())
        for share in SHARES:
            traffic.begin()
            found[share].append(next((day for day in range(1, MOST_DAYS + 1) if traffic.next_day(other, share)), MOST_DAYS))
    print(f"{other} into {served}: {found}", flush=True)
    return f"{other} into {served}", found


class _Traffic:
    """Days of one workload, drawn one after the other, and compared with the reference window before them."""

    def __init__(self, pool: Pools, served: str, rng: np.random.Generator, settings: DriftSettings):
        self._pool, self._served, self._rng, self._settings = pool, served, rng, settings
        vocabulary = -(-settings.reference_days // 4)
        days = [FIRST + timedelta(day) for day in range(settings.reference_days)]
        usual = {day: self._drawn(day) for day in days[vocabulary:]}
        reference = Reference(days[0], days[-1], tuple(days[:vocabulary]), tuple(days[vocabulary:]))
        self._end = days[-1]
        self.begin()
        rate = settings.false_alarms_per_1000_days / 1_000 / 2  # the other half is the chart of acceptance's
        self._comparison = WindowComparison(reference, usual, pool.columns, settings, rate, str(rng.integers(2**62)))

    def begin(self) -> None:
        """Forgets all days after the reference window."""
        self._today, self._counts = self._end, {}

    def next_day(self, other: str | None = None, share: float = 0.0) -> list[str]:
        """The tests that alarm at the end of the next day, of which a share of the sessions comes from another workload."""
        self._today += timedelta(1)
        self._counts[self._today] = self._drawn(self._today, other, share)
        self._counts.pop(self._today - timedelta(max(self._settings.windows)), None)
        found = self._comparison.of_day(self._today, self._counts)
        return [f"{each.test}/{each.window_days}" for each in found if each.alarm]

    def _drawn(self, day: date, other: str | None = None, share: float = 0.0) -> np.ndarray:
        weekend = day.weekday() >= 5
        count = max(1, round(SESSIONS * (WEEKEND if weekend else 1) * self._rng.lognormal(0, NOISE)))
        changed = self._rng.binomial(count, share)
        parts = [self._sessions(self._served, count - changed, weekend)]
        if changed and other:
            parts.append(self._sessions(other, changed, weekend))
        return np.concatenate(parts)

    def _sessions(self, kind: str, count: int, weekend: bool) -> np.ndarray:
        counts = self._pool.counts[kind]
        turns = np.log(_rows_of(self._pool, counts))
        weights = np.exp(LONGER_AT_WEEKENDS * weekend * (turns - turns.mean()) / max(turns.std(), 1e-9))
        return counts[self._rng.choice(len(counts), count, p=weights / weights.sum())]


def _rows_of(pool: Pools, counts: np.ndarray) -> np.ndarray:
    """Rows of each session: every row counts once in the test of errors."""
    return next(each for each in pool.columns if each.name == "errors").of(counts).sum(axis=1)


def _acceptance(settings: DriftSettings, repeats: int) -> dict[str, Any]:
    rate = settings.false_alarms_per_1000_days / 1_000 / 2
    reference, alarms, days, delays = settings.reference_days, 0, 0, []
    for repeat in range(repeats):
        rng = np.random.default_rng([13, repeat])
        quiet = _served(rng, reference + DAYS_A_RUN, None)
        found = acceptance(quiet, settings, rate, quiet[-1].hour + timedelta(hours=1), str(repeat)).days
        alarms, days = alarms + sum(day.alarm for day in found), days + len(found)
        fallen = _served(rng, reference + MOST_DAYS, reference)
        found = acceptance(fallen, settings, rate, fallen[-1].hour + timedelta(hours=1), str(repeat)).days
        delays.append(next((place for place, day in enumerate(found, 1) if day.alarm), MOST_DAYS))
    return {
        "false_alarms_per_1000_days": round(1_000 * alarms / days, 2),
        "quiet_days": days,
        "fall": DROP,
        "delay_days": round(float(np.mean(delays)), 2),
        "longest_delay_days": max(delays),
    }


def _served(rng: np.random.Generator, days: int, falls_on: int | None) -> list[HourlyDrafts]:
    """Hours of a server: more drafts by day than at night, tau with a cycle of the day and noise from hour to hour."""
    noise, hours = 0.0, []
    for hour in range(24 * days):
        noise = CORRELATION * noise + rng.normal(0, DEVIATION) * (1 - CORRELATION**2) ** 0.5
        cycle = np.sin(2 * np.pi * (hour % 24 - 6) / 24)
        tau = (TAU + CYCLE * cycle + noise) * (1 - DROP * (falls_on is not None and hour >= 24 * falls_on))
        drafts = int(DRAFTS * (1 + 0.6 * cycle))
        accepted = int(rng.binomial(3 * drafts, min(1.0, max(0.0, (tau - 1) / 3))))
        hours.append(HourlyDrafts(datetime(2026, 1, 5, tzinfo=UTC) + timedelta(hours=hour), drafts, accepted))
    return hours


def _pools(data: Path, folder: Path) -> dict[str, Pools]:
    """Counts of every session, once under the vocabulary of each workload."""
    tables = Tables(LakeLayout.open(folder / "lake"))
    write_pairs(list(conversations(data)), folder / "logs")
    ingest(tables, WORKLOAD, {"gateway": SourceSettings(uri=str(folder / "logs"))})
    clean(tables, WORKLOAD, sorted(tables.rows_by_day("interactions", WORKLOAD)), CurationSettings())
    rows = tables.open("cleaned_interactions").to_pyarrow_table()
    kinds = list(KINDS.values())
    parts = {(kind, held): _of(rows, kind, held) for kind in kinds for held in (False, True)}
    found = {}
    for served in kinds:
        days = {kind: POOL_DAY + timedelta(place) for place, kind in enumerate(kinds)}
        simulated = [_on(parts[kind, False], day) for kind, day in days.items()] + [_on(parts[served, True], VOCABULARY_DAY)]
        pooled = Tables(LakeLayout.open(folder / f"lake-{served}"))
        pooled.append("cleaned_interactions", pa.concat_tables(simulated))
        reference = Reference(VOCABULARY_DAY, VOCABULARY_DAY, (VOCABULARY_DAY,), (VOCABULARY_DAY,))
        source = SessionCounts(pooled, WORKLOAD, reference, DriftSettings(), DriftInputs())
        found[served] = Pools(source.columns, {kind: source.of_day(day) for kind, day in days.items()})
        print(served, {kind: len(counts) for kind, counts in found[served].counts.items()}, flush=True)
    return found


def _of(rows: pa.Table, kind: str, held: bool) -> pa.Table:
    """Rows of one workload: those of every second session, or the others."""
    begins = next(beginning for beginning, name in KINDS.items() if name == kind)
    mine = rows.filter(pc.starts_with(rows["session_id"], begins))
    sessions = pc.unique(mine["session_id"]).sort()
    return mine.filter(pc.is_in(mine["session_id"], sessions.take(pa.array(range(int(held), len(sessions), 2)))))


def _on(rows: pa.Table, day: date) -> pa.Table:
    """The rows as of one day."""
    return (
        rows.set_column(rows.schema.get_field_index("dt"), "dt", pa.array([day] * len(rows), pa.date32()))
        .select(SCHEMAS["cleaned_interactions"].names)
        .cast(SCHEMAS["cleaned_interactions"])
    )


if __name__ == "__main__":
    main()
