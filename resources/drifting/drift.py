"""Compares each day of a workload's traffic with the reference window, and keeps every value in the table `drift`.

    report = compare_traffic(tables, "math-tutor", settings, Seen(), served_release(lake, "math-tutor"))
    report.alarms            # rows of the newest day that alarm
    report.notes             # what was not compared, and why, in words

A day is compared once it is over (UTC) and again when its files changed: late logs, feedback or judgements, rows that were
cleaned or erased. The reference window stays the one that was chosen first, also when its rows leave the lake. The bound on
false alarms is shared by the traffic's tests and the chart of acceptance, half each, if servers report acceptance.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

from model_ops.wording import counted
from resources.artefacts.remembered import partition_key
from resources.artefacts.source_digest import source_digest
from resources.drifting.acceptance import Acceptance, Served, acceptance
from resources.drifting.chosen_window import TEXT_TESTS, ChosenWindow, Window, without_texts
from resources.drifting.compare import Comparison, Result
from resources.drifting.days import Reference, reference_of, window_of
from resources.drifting.kept_counts import Counts, DayFiles, KeptCounts
from resources.drifting.prompt_vectors import Embedder, PromptVectors
from resources.drifting.release_reference import NO_RELEASE, ServedRelease
from resources.drifting.session_counts import EMBEDDED, TESTS, Seen, SessionCounts
from resources.drifting.settings import DriftSettings
from resources.sql_files import attach_slice, rows, run, workbench
from resources.tables import SCHEMAS, Tables

ACCEPTANCE = "acceptance"
DAYS_A_COMMIT = 32
COUNTED_BY = ("sql/drifting/categories", "sql/drifting/traffic", "sql/drifting/sessions", "sql/drifting/session_counts",
              "sql/curating/macros/beginning", "sql/curating/macros/refused_in_words")
"""What counts a session in the tests that need no texts."""
ALL_TESTS = (*TESTS, *EMBEDDED)
NO_TEXTS = "rows of the reference window are no longer in the lake, and its texts are not kept"


@dataclass
class DriftReport:
    """What a run compared. window: which days the reference is, in words. instead_of: first and last day of a reference that
    could not be compared with any more. rows: of the table `drift`, as they were written."""

    release: str = ""
    reference: Reference | None = None
    window: str = ""
    instead_of: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def days(self) -> list[date]:
        return sorted({row["dt"] for row in self.rows})

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """Rows of the newest compared day that alarm."""
        return [row for row in self.rows if row["alarm"] and row["dt"] == self.days[-1]]


def compare_traffic(
    tables: Tables, workload: str, settings: DriftSettings, seen: Seen, release: ServedRelease = NO_RELEASE,
    now: datetime | None = None, embedder: Embedder | None = None,
) -> DriftReport:
    """Compares every day that is over and was not compared yet, and writes its rows in commits of DAYS_A_COMMIT days.

    embedder: of `settings.embeddings.model`; without, no embeddings are compared.
    """
    now = now or datetime.now(UTC)
    report = DriftReport(release.name, notes=[release.problem] if release.problem else [])
    by_day = tables.rows_by_day("cleaned_interactions", workload)
    ahead = sorted(day for day in by_day if day > now.date())
    if ahead:
        report.notes.append(f"{counted(len(ahead), 'day')} of the logs, up to {ahead[-1]}, {_is_or_are(len(ahead))} after "
                            f"today, {now.date()}: a clock of the logs or of this machine is wrong, and these rows are not "
                            "compared yet")
    hours = _served_hours(tables, workload, release, report)
    rate = settings.false_alarms_per_1000_days / 1_000 / (2 if hours else 1)
    digest = _digest(settings, seen, rate, embedder)
    chosen = ChosenWindow(tables.lake, workload, release.name, settings.reference_days, _counted_with(seen))
    judged = tables.rows_by_day("judgements", workload)
    counted_rows = {day: count + judged.get(day, 0) for day, count in by_day.items()}
    lost = _reference(report, chosen, counted_rows, settings, release, now.date())
    if report.reference is None:
        report.notes.append(_no_reference(by_day, settings, now.date()))
    else:
        _compare_days(tables, workload, settings, seen, report, counted_rows, now, rate, digest, embedder, chosen, lost)
    if hours:
        found = acceptance(hours, settings, rate, now, f"{workload}/{release.name}")
        _keep_acceptance(tables, workload, found, report, digest, now)
    return report


def _reference(report: DriftReport, chosen: ChosenWindow, by_day: dict[date, int], settings: DriftSettings,
               release: ServedRelease, today: date) -> Window | None:
    """Sets the report's reference window: the chosen one as long as it can be compared with. Returns it where rows of its days
    are gone, so that its kept counts are compared with."""
    before = chosen.window
    is_lost = before is not None and before.has_left(by_day)
    is_usable = before is not None and is_lost and before.counted_with == chosen.counted_with
    if (lost := chosen.with_counts() if is_usable else None) is not None:
        report.reference = lost.reference
        report.notes.append("rows of the reference window are no longer in the lake: days are compared with what its sessions "
                            "counted, in all tests but those of novelty, which need its texts")
    else:
        start = before.reference.start if before is not None and not is_lost else None
        report.reference = reference_of(by_day, settings.reference_days, today, release.made, start)
    report.window = _named(report.reference, settings, release) if report.reference is not None else ""
    if before is not None and is_lost and lost is None:
        report.instead_of = (before.reference.start.isoformat(), before.reference.end.isoformat())
    elif before is not None:
        report.instead_of = before.instead_of
    if instead_of := report.instead_of:
        report.notes.append(
            f"the reference window was {instead_of[0]} to {instead_of[1]} before: rows of it left the lake, and what was kept "
            "of it was counted with other settings or code. A change between the two windows is not found; to avoid this, "
            f"keep rows for the age of the release and {counted(settings.reference_days, 'day')} more")
    return lost


def _named(reference: Reference, settings: DriftSettings, release: ServedRelease) -> str:
    if release.made is not None and reference.start == release.made - timedelta(settings.reference_days):
        return f"the last full window before release {release.name}"
    if release.name:
        return f"a full window of the logs, since the lake had none before release {release.name}"
    return "the first full window of the logs, since no release is served"


def _compare_days(
    tables: Tables, workload: str, settings: DriftSettings, seen: Seen, report: DriftReport, by_day: dict[date, int],
    now: datetime, rate: float, digest: str, embedder: Embedder | None, chosen: ChosenWindow,
    lost: Window | None,
) -> None:
    """lost: the reference window, where rows of it are gone."""
    reference, files = report.reference, DayFiles(tables, workload)
    assert reference is not None
    wanted = _to_compare(tables, workload, settings, report.release, reference, by_day, now.date(), digest, files)
    if not wanted:
        return
    vectors = PromptVectors(tables.lake, workload, embedder) if embedder is not None else None
    if vectors is not None:
        vectors.keep_days(by_day)
    newest = sorted(by_day)[-max(settings.windows) :]
    if lost is not None:
        source = SessionCounts(tables, workload, reference, settings, seen, known=lost.known)
        kept = KeptCounts(tables, workload, (), f"{digest}{lost.files}", source.of_day)
        kept.keep_days(newest)
        usual = dict(lost.counts)
    else:
        source = SessionCounts(tables, workload, reference, settings, seen, vectors)
        kept = KeptCounts(tables, workload, reference.vocabulary, digest, source.of_day)
        kept.keep_days([*reference.comparison, *newest])
        if vectors is not None:
            in_windows = {near for day in wanted for near in window_of(day, max(settings.windows), by_day, reference.end)}
            uncounted = [day for day in {*reference.comparison, *in_windows} if not kept.has(day)]
            source.embed(sorted({*reference.vocabulary, *uncounted}))
        usual = {day: kept.of_day(day) for day in reference.comparison}
        _keep_window(chosen, reference, source, usual, by_day, files, report.instead_of)
    comparison = Comparison(reference, usual, source.columns, settings, rate, f"{workload}/{report.release}")
    untested = [] if lost is None else [test for test in ALL_TESTS if test in TEXT_TESTS and (
        test not in EMBEDDED or embedder is not None)]
    for first in range(0, len(wanted), DAYS_A_COMMIT):
        part: list[dict[str, Any]] = []
        for day in wanted[first : first + DAYS_A_COMMIT]:
            near = {other: kept.of_day(other) for other in window_of(day, max(settings.windows), by_day, reference.end)}
            results = comparison.of_day(day, near)
            lengths = {result.window_days: result for result in results}
            results += [replace(one, test=test, value=None, bound=None, p=None, level=None, alarm=False, dispersion=None,
                                problem=NO_TEXTS) for one in lengths.values() for test in untested]
            for result in results:
                window = window_of(day, result.window_days, by_day, reference.end)
                part.append(_row(result, workload, report.release, reference, digest, now, sum(by_day[each] for each in window),
                                 partition_key(files.of(*window))))
        _commit(tables, workload, report.release, part)
        report.rows += part


def _keep_window(chosen: ChosenWindow, reference: Reference, source: SessionCounts, usual: Mapping[date, Counts],
                 by_day: Mapping[date, int], files: DayFiles, instead_of: tuple[str, ...]) -> None:
    """Keeps the reference window with its counts, where it is another than the one that is kept."""
    days = (*reference.vocabulary, *reference.comparison)
    window = Window(reference, source.known, chosen.counted_with, partition_key(files.of(*days)),
                    {day: by_day[day] for day in days}, instead_of=instead_of)
    if window != chosen.window:
        chosen.keep(replace(window, counts={day: without_texts(found, source.columns) for day, found in usual.items()}))


def _to_compare(
    tables: Tables, workload: str, settings: DriftSettings, release: str, reference: Reference, by_day: Collection[date],
    today: date, digest: str, files: DayFiles,
) -> list[date]:
    """Days after the reference that are over and have a window that was not compared with the files that it has now."""
    with workbench() as connection:
        attach_slice(connection, tables, "drift", workload)
        known = {(row["dt"], row["window_days"]): row["files"] for row in rows(
            connection, "drifting/compared", release=release, settings=digest, reference_start=reference.start,
            reference_end=reference.end).to_pylist()}
    first = min(by_day, default=today)

    def is_stale(day: date) -> bool:
        for length in settings.windows:
            window, before = window_of(day, length, by_day, reference.end), known.get((day, length))
            is_cut = reference.end < first and day - timedelta(length - 1) < first
            if before is not None and is_cut:
                continue  # retention removed its first days since it was compared
            if (length == 1 or len(window) > 1) and before != partition_key(files.of(*window)):
                return True
        return False

    return [day for day in sorted(by_day) if reference.end < day < today and is_stale(day)]


def _row(
    result: Result, workload: str, release: str, reference: Reference, digest: str, now: datetime, count: int,
    files: str | None = None,
) -> dict[str, Any]:
    return {
        "workload": workload, "release": release, "dt": result.day, "window_days": result.window_days, "test": result.test,
        "value": result.value, "bound": result.bound, "p": result.p, "level": result.level, "alarm": result.alarm,
        "dispersion": result.dispersion, "sessions": result.sessions, "reference_sessions": result.reference_sessions,
        "reference_start": reference.start, "reference_end": reference.end, "rows": count, "problem": result.problem or None,
        "settings": digest, "ts": now, "files": files,
    }


def _served_hours(tables: Tables, workload: str, release: ServedRelease, report: DriftReport) -> list[Served]:
    """Hours that servers reported for the release; what cannot be true is named. Where nobody reads their metrics: of captured
    requests whose answers say it."""
    with workbench() as connection:
        attach_slice(connection, tables, "serving_metrics", workload)
        backwards, too_many = run(connection, "drifting/odd_windows").fetchall()[0]
        found = rows(connection, "drifting/served_hours", release=release.name or None).to_pylist()
        if not found and tables.holds("interactions", workload, "drafts"):
            attach_slice(connection, tables, "interactions", workload)
            found = rows(connection, "drifting/captured_hours", release=release.name or None).to_pylist()
    if backwards:
        report.notes.append(f"{counted(backwards, 'window')} of serving_metrics with an end before the beginning "
                            f"{_is_or_are(backwards)} left out: a clock went backwards, of the server or of what reads its "
                            "metrics")
    if too_many:
        report.notes.append(f"{counted(too_many, 'window')} of serving_metrics with more accepted than drafted tokens "
                            f"{_is_or_are(too_many)} left out: the server was restarted within, or its counters are mixed up")
    return [Served(row["hour"].astimezone(UTC), row["drafts"], row["accepted_tokens"]) for row in found]


def _keep_acceptance(
    tables: Tables, workload: str, found: Acceptance, report: DriftReport, digest: str, now: datetime
) -> None:
    """Writes the days of the chart that are new or changed: a late window changes the sums after it."""
    if found.problem:
        report.notes.append(f"acceptance is not compared: {found.problem}")
        return
    assert found.start is not None and found.end is not None
    with workbench() as connection:
        attach_slice(connection, tables, "drift", workload)
        known = {row["dt"]: (row["value"], row["bound"], row["settings"]) for row in rows(
            connection, "drifting/acceptance_compared", release=report.release).to_pylist()}
    reference = Reference(found.start, found.end, (), ())
    part = [_row(Result(each.day, 1, ACCEPTANCE, value=each.sum, bound=found.bound, alarm=each.alarm), workload, report.release,
                 reference, digest, now, 0)
            for each in found.days if known.get(each.day) != (each.sum, found.bound, digest)]
    _commit(tables, workload, report.release, part)
    report.rows += part


def _commit(tables: Tables, workload: str, release: str, part: Sequence[dict[str, Any]]) -> None:
    """Replaces the rows of these tests and days."""
    tests, days = (sorted({row[column] for row in part}) for column in ("test", "dt"))
    if days:
        tables.replace("drift", pa.Table.from_pylist(list(part), schema=SCHEMAS["drift"]), workload=workload, release=release,
                       dt=days, test=tests)


def _is_or_are(count: int) -> str:
    return "is" if count == 1 else "are"


def _no_reference(by_day: dict[date, int], settings: DriftSettings, today: date) -> str:
    past = sorted(day for day in by_day if day < today)
    if not past:
        return "there is no day of traffic that is over: nothing is compared yet"
    return (f"the reference window is the first {settings.reference_days} days of traffic ({past[0]} on), of which "
            f"{counted((past[-1] - past[0]).days + 1, 'day')} are over: nothing is compared yet; drift.reference_days makes it "
            "shorter")


def _counted_with(seen: Seen) -> str:
    """Digest of what decides what a session counts, given what the vocabulary tells apart: tests, judge, feedback's least, SQL.
    Nothing else, since with another digest a window whose rows are gone cannot be compared with any more."""
    asked = json.dumps([TESTS, _judge(seen), seen.least], sort_keys=True)
    return hashlib.sha256(f"{asked}{source_digest(*COUNTED_BY)}".encode()).hexdigest()[:16]


def _judge(seen: Seen) -> list[str] | None:
    return [seen.judge.model, seen.judge.prompt_sha256] if seen.judge else None


def _digest(settings: DriftSettings, seen: Seen, rate: float, embedder: Embedder | None) -> str:
    """Digest of what decides the values: settings, judge, embedding model, code."""
    asked = json.dumps([settings.model_dump(mode="json"), _judge(seen), seen.least, rate,
                        embedder.digest if embedder else None], sort_keys=True)
    return hashlib.sha256(f"{asked}{source_digest('resources/drifting/drift.py')}".encode()).hexdigest()[:16]

