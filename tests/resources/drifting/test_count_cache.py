"""Counts of days are kept: the same report with fewer reads, and counted again where rows or the vocabulary changed."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from cleaned_rows import FIRST, cleaned, days_of_rows, generator, store

from resources.drifting import chosen_window as count_cache
from resources.drifting.chosen_window import CountCache
from resources.drifting.drift import compare_traffic
from resources.drifting.session_counts import DriftInputs, SessionCounts
from resources.drifting.settings import DriftSettings
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables

SETTINGS = DriftSettings(reference_days=4, windows=[1, 2], false_alarms_per_1000_days=10)
END, NOW = FIRST + timedelta(4), datetime(2026, 6, 20, tzinfo=UTC)


@pytest.fixture
def tables(tmp_path):
    return Tables(LakeLayout.open(tmp_path / "lake"))


@pytest.fixture
def counted(monkeypatch):
    """The days that were counted, in order."""
    days, original = [], SessionCounts.of_day
    monkeypatch.setattr(SessionCounts, "of_day", lambda self, day: days.append(day) or original(self, day))
    return days


def values(report):
    return [{**row, "ts": None, "files": None} for row in report.rows]


def test_the_next_day_is_compared_with_kept_counts_and_gives_the_very_same_values(tables, tmp_path, counted):
    rows, late = (
        days_of_rows(5, generator(1), sessions=25),
        days_of_rows(1, generator(2), sessions=25, first=END + timedelta(1)),
    )
    store(tables, "cleaned_interactions", rows)
    compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW)
    assert counted == [FIRST + timedelta(day) for day in range(1, 5)]  # all but the vocabulary
    store(tables, "cleaned_interactions", late)
    counted.clear()
    warm = compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW)
    assert counted == [END + timedelta(1)] == warm.days  # the day before it, for the window of two days, is kept too
    cold = Tables(LakeLayout.open(tmp_path / "cold"))
    store(cold, "cleaned_interactions", [*rows, *late])
    found = values(compare_traffic(cold, "tutor", SETTINGS, DriftInputs(), now=NOW))
    assert values(warm) == [row for row in found if row["dt"] == END + timedelta(1)] and len(warm.rows) == 24


def test_other_rows_of_a_day_and_of_the_vocabulary_are_counted_again(tables, counted):
    rows = days_of_rows(5, generator(3), sessions=20)
    store(tables, "cleaned_interactions", rows)
    everything = [FIRST + timedelta(day) for day in range(1, 5)]

    def look(*changed):
        counted.clear()
        for day in changed:
            store(tables, "cleaned_interactions", [*(row for row in rows if row["dt"] == day), cleaned(10**9, day, "late")])
        seen.append(cleaned(10**9 + len(seen), END, "one more"))
        store(tables, "cleaned_interactions", [*(row for row in rows if row["dt"] == END), *seen])
        compare_traffic(tables, "tutor", SETTINGS, DriftInputs(), now=NOW)
        return counted

    seen = []
    assert look() == everything
    assert look() == [END]
    assert look(FIRST + timedelta(2)) == [FIRST + timedelta(2), END]
    assert look(FIRST) == everything


def test_broken_files_are_counted_again_and_other_days_are_forgotten(tables):
    store(tables, "cleaned_interactions", days_of_rows(3, generator(4), sessions=20))
    asked = []

    def count(day):
        asked.append(day)
        return np.full((2, 3), 1 / 3)

    def kept():
        return CountCache(tables, "tutor", [FIRST], "digest", count)

    days = [FIRST + timedelta(day) for day in range(3)]
    assert all(np.array_equal(kept().of_day(day), np.full((2, 3), 1 / 3)) for _ in range(2) for day in days) and asked == days
    folder = tables.lake.root / ".remembered" / "drift" / "tutor"
    whole = (folder / f"{days[0]}.npz").read_bytes()
    for content in (b"", b"broken", whole[:100]):
        (folder / f"{days[0]}.npz").write_bytes(content)
        assert not kept().has(days[0]) and kept().of_day(days[0]).shape == (2, 3) and kept().has(days[0])
    assert not CountCache(tables, "tutor", [FIRST], "other", count).has(days[1])
    kept().keep_days(days[:2])
    assert sorted(path.stem for path in folder.iterdir()) == [str(day) for day in days[:2]]


def test_a_lake_that_cannot_be_written_is_compared_all_the_same(tables, monkeypatch):
    def full(path):
        raise OSError("no space left on device")

    monkeypatch.setattr(count_cache, "replaced", full)
    assert CountCache(tables, "tutor", [], "digest", lambda day: np.ones((1, 2))).of_day(FIRST).tolist() == [[1, 1]]
