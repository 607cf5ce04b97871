"""The reference window stays the one that was chosen, also when retention removes its rows."""

from datetime import UTC, datetime, time, timedelta

import numpy as np
import pytest
from cleaned_rows import FIRST, cleaned, days_of_rows, generator, store

from resources.curating import FeedbackScale
from resources.drifting import chosen_window as count_cache
from resources.drifting.chosen_window import ChosenWindow, CountCache, KnownVocabulary, ReferenceWindow
from resources.drifting.drift import COUNTED_BY, ServedRelease, compare_traffic
from resources.drifting.page import write_drift_page
from resources.drifting.session_counts import DriftInputs, SessionCounts
from resources.drifting.settings import DriftSettings, Reference
from resources.lake import sql_files
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from stores.mirror.bucket import Conflict

SETTINGS = DriftSettings(reference_days=4, windows=[1, 3], false_alarms_per_1000_days=10, least_sessions=5)
END = FIRST + timedelta(4)
"""The first day after the reference window."""
ROWS = days_of_rows(10, generator(1), sessions=12)


def arrive(tables, *days):
    store(tables, "cleaned_interactions", [row for row in ROWS if (row["dt"] - FIRST).days in days])


def leave(tables, *days):
    """What retention does."""
    tables.replace(
        "cleaned_interactions",
        SCHEMAS["cleaned_interactions"].empty_table(),
        workload="tutor",
        dt=[FIRST + timedelta(day) for day in days],
    )


def compared(tables, day, seen=None, **more):
    """The report of the morning after a day."""
    now = datetime.combine(FIRST + timedelta(day + 1), time(3), UTC)
    return compare_traffic(tables, "tutor", SETTINGS, seen or DriftInputs(), now=now, **more)


def shown(report, *columns):
    return sorted(
        (row["dt"], row["window_days"], row["test"], *(row[name] for name in columns))
        for row in report.rows
        if row["test"] != "novelty"
    )


@pytest.mark.parametrize("release", [ServedRelease(), ServedRelease("3f2a", released_on=END)])
def test_days_are_compared_with_the_same_window_and_values_after_its_rows_are_gone(tables, tmp_path, release):
    whole = Tables(LakeLayout.open(tmp_path / "whole"))
    for each in (tables, whole):
        arrive(each, *range(5))
        assert compared(each, 4, release=release).days == [END]
    arrive(whole, 5, 6)
    arrive(tables, 5, 6)
    leave(tables, 0, 1)
    cut, kept = (compared(each, 6, release=release) for each in (tables, whole))
    assert (cut.reference.start, cut.reference.end) == (FIRST, END - timedelta(1)) and cut.reference == kept.reference
    columns = ("value", "p", "sessions", "reference_sessions", "dispersion", "problem")
    assert shown(cut, *columns) == shown(kept, *columns) and cut.days == [END + timedelta(1), END + timedelta(2)]
    [problem] = {row["problem"] for row in cut.rows if row["test"] == "novelty"}
    assert "no longer in the lake" in problem and not any(row["problem"] for row in kept.rows if row["test"] == "novelty")
    assert "rows of the reference window are no longer in the lake" in cut.notes[0] and kept.notes == []
    said = "the last full window before release 3f2a" if release.name else "the first full window of the logs"
    assert f"2026-06-01 to 2026-06-04, {said}" in write_drift_page(tables, "tutor", cut, SETTINGS).read_text()


def test_a_change_is_found_after_all_rows_of_the_window_are_gone_and_cut_windows_are_not_compared_again(tables):
    arrive(tables, *range(6))
    compared(tables, 5)
    leave(tables, *range(5))  # the day after the window, too
    arrive(tables, 6)
    assert compared(tables, 6).days == [FIRST + timedelta(6)]
    leave(tables, 5)
    changed = [row | {"status": "error", "language": "de"} for row in ROWS if row["dt"] == FIRST + timedelta(7)]
    store(tables, "cleaned_interactions", changed)
    report = compared(tables, 7)
    assert report.days == [FIRST + timedelta(7)] and report.reference.start == FIRST
    assert {"errors", "language"} <= {row["test"] for row in report.alarms}
    assert compared(tables, 7).rows == []


def test_every_query_that_counts_a_session_decides_whether_kept_counts_can_be_used(tables, monkeypatch):
    arrive(tables, *range(6))
    compared(tables, 5)
    kept = ChosenWindow(tables.lake, "tutor", "", 4, "").with_counts()
    read, text = set(), sql_files.sql_text
    monkeypatch.setattr(sql_files, "sql_text", lambda name: read.add(f"sql/{name}") or text(name))
    source = SessionCounts(tables, "tutor", kept.reference, DriftInputs(), known=kept.known)
    assert source.of_day(END).shape[1] == kept.counts[FIRST + timedelta(1)].shape[1]
    assert {*read, "sql/drifting/categories"} - {"sql/tables/columns", "sql/tables/slice"} == set(COUNTED_BY)


def test_a_window_that_was_counted_otherwise_is_replaced_and_every_report_says_so(tables):
    arrive(tables, *range(5))
    compared(tables, 4)
    leave(tables, 0)
    arrive(tables, 5)
    other = DriftInputs(scales={"stars": FeedbackScale(1, 3.0)})
    report = compared(tables, 5, other)
    assert report.reference.start == FIRST + timedelta(1)
    assert "the reference window was 2026-06-01 to 2026-06-04" in report.notes[0]
    arrive(tables, 6)
    leave(tables, 1)
    again = compared(tables, 6, other)
    assert again.reference == report.reference and "was 2026-06-01 to 2026-06-04 before" in again.notes[1]
    assert compared(tables, 6).reference.start == FIRST + timedelta(2)  # the first settings again: nothing of theirs is kept


def test_a_part_of_an_old_day_that_comes_back_and_an_erased_user_change_no_window(tables):
    arrive(tables, *range(5))
    compared(tables, 4)
    of_one = [row for row in ROWS if row["dt"] < END and row["session_id"].endswith("-1")]
    erased = [row for row in ROWS if row["dt"] < END and row not in of_one]
    store(tables, "cleaned_interactions", erased)
    arrive(tables, 5)
    assert not any(row["problem"] for row in compared(tables, 5).rows if row["test"] == "novelty")
    leave(tables, *range(4))
    arrive(tables, 6)
    before = compared(tables, 6)
    store(tables, "cleaned_interactions", of_one)  # an old object has changed and is read again
    arrive(tables, 7)
    after = compared(tables, 7)
    assert after.reference == before.reference and all(row["problem"] for row in after.rows if row["test"] == "novelty")
    assert {row["reference_sessions"] for row in after.rows} == {row["reference_sessions"] for row in before.rows} == {3 * 11}


def test_older_logs_that_come_late_give_a_release_its_own_window_and_change_no_other(tables):
    arrive(tables, *range(3, 9))
    release = ServedRelease("3f2a", released_on=FIRST + timedelta(6))
    assert compared(tables, 8).reference.start == compared(tables, 8, release=release).reference.start == FIRST + timedelta(3)
    arrive(tables, 0, 1, 2)
    assert compared(tables, 8).reference.start == FIRST + timedelta(3)
    assert compared(tables, 8, release=release).reference.start == FIRST + timedelta(2)


def window(start=FIRST):
    days = tuple(start + timedelta(day) for day in range(4))
    return ReferenceWindow(
        Reference(days[0], days[-1], days[:1], days[1:]),
        KnownVocabulary({"language": ["a1", ""]}, {"prompt_length": [3]}),
        "code",
        "files",
        dict.fromkeys(days, 100),
        {day: np.arange(6.0).reshape(2, 3) for day in days[1:]},
        ("2026-05-01", "2026-05-04"),
    )


def test_a_window_is_read_as_it_was_written_and_a_broken_file_is_none(tables):
    place = ChosenWindow(tables.lake, "tutor", "3f2a", 4, "code")
    assert place.window is None
    place.keep(window())
    again = ChosenWindow(tables.lake, "tutor", "3f2a", 4, "code")
    read = again.with_counts()
    assert again.window == read == window() and not again.window.counts
    assert all(np.array_equal(read.counts[day], found) for day, found in window().counts.items())
    assert (
        ChosenWindow(tables.lake, "tutor", "3f2a", 28, "code").window
        is ChosenWindow(tables.lake, "tutor", "", 4, "code").window
        is None
    )
    [path] = tables.lake.root.glob("reference_windows/tutor/*.npz")
    for content in (b"", b"broken", path.read_bytes()[:200]):
        path.write_bytes(content)
        broken = ChosenWindow(tables.lake, "tutor", "3f2a", 4, "code")
        assert broken.window is broken.with_counts() is None


def test_of_two_machines_the_first_one_chooses(tables, tmp_path, monkeypatch):
    other = LakeLayout.open(tmp_path / "other")
    ChosenWindow(other, "tutor", "", 4, "code").keep(window(FIRST + timedelta(7)))
    place = ChosenWindow(tables.lake, "tutor", "", 4, "code")

    def refuse(path):
        raise Conflict(path.name)

    def pull(path):
        path.write_bytes((other.root / path.relative_to(tables.lake.root)).read_bytes())

    monkeypatch.setattr(tables.lake.mirror, "publish", refuse)
    monkeypatch.setattr(tables.lake.mirror, "pull_file", pull)
    place.keep(window())
    assert ChosenWindow(tables.lake, "tutor", "", 4, "code").window == window(FIRST + timedelta(7))


def test_no_name_and_no_text_is_kept_of_a_window(tables):
    rows = [row | {"prompt_shape": "SECRETSHAPE#1", "language": "xq"} for row in ROWS]
    store(tables, "cleaned_interactions", [*rows, cleaned(10**8, FIRST, "SECRETSESSION", prompt="SECRETPROMPT")])
    compared(tables, 4)
    [path] = tables.lake.root.glob("reference_windows/tutor/*.npz")
    with np.load(path) as kept:
        about = str(kept["about"])
    assert "SECRET" not in about and '"xq"' not in about and "prompt_shapes" in about


COUNTED_SETTINGS = DriftSettings(reference_days=4, windows=[1, 2], false_alarms_per_1000_days=10)
NOW = datetime(2026, 6, 20, tzinfo=UTC)


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
    compare_traffic(tables, "tutor", COUNTED_SETTINGS, DriftInputs(), now=NOW)
    assert counted == [FIRST + timedelta(day) for day in range(1, 5)]  # all but the vocabulary
    store(tables, "cleaned_interactions", late)
    counted.clear()
    warm = compare_traffic(tables, "tutor", COUNTED_SETTINGS, DriftInputs(), now=NOW)
    assert counted == [END + timedelta(1)] == warm.days  # the day before it, for the window of two days, is kept too
    cold = Tables(LakeLayout.open(tmp_path / "cold"))
    store(cold, "cleaned_interactions", [*rows, *late])
    found = values(compare_traffic(cold, "tutor", COUNTED_SETTINGS, DriftInputs(), now=NOW))
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
        compare_traffic(tables, "tutor", COUNTED_SETTINGS, DriftInputs(), now=NOW)
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

    monkeypatch.setattr(count_cache, "replacement", full)
    assert CountCache(tables, "tutor", [], "digest", lambda day: np.ones((1, 2))).of_day(FIRST).tolist() == [[1, 1]]
