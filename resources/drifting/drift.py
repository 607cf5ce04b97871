"""Compares each day of a workload's traffic with the reference window, and keeps every value in the table `drift`: once the day
is over (UTC) and again when its files changed. The bound on false alarms is shared by the traffic's tests and the chart of
acceptance, half each, if servers report acceptance."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

from model_ops.jobs import counted
from resources.digests import partition_key, source_digest
from resources.drifting.acceptance_chart import HourlyDrafts, acceptance
from resources.drifting.chosen_window import (
    TEXT_TESTS,
    ChosenWindow,
    CountCache,
    Counts,
    DayFiles,
    ReferenceChoice,
    ReferenceWindow,
    without_texts,
)
from resources.drifting.compare import Result, WindowComparison
from resources.drifting.session_counts import TESTS, DriftInputs, SessionCounts
from resources.drifting.settings import DriftSettings, Reference, window_of
from resources.endpoints import Endpoint, EndpointError, EndpointLogError
from resources.lake import SCHEMAS, LakeLayout, Tables, attach_slice, rows, run, workbench
from resources.manifests import ManifestError, read_manifest
from resources.reading import CHATS_SOURCE


@dataclass(frozen=True)
class ServedRelease:
    """The release that traffic is compared for."""

    name: str = ""
    """Its version."""
    released_on: date | None = None
    """The day on which it was made, before which its reference window ends."""
    problem: str = ""
    """Why it is not known; then the first full window of the logs is the reference, as without a release."""


NO_RELEASE = ServedRelease()


def served_release(lake: LakeLayout, workload: str) -> ServedRelease:
    try:
        _, aliases = Endpoint(lake, workload).seen()
        if aliases.champion is None:
            return NO_RELEASE
        released_at = read_manifest(lake.artefacts("release") / workload / aliases.champion).created_at
    except (EndpointError, EndpointLogError, ManifestError) as error:
        return ServedRelease(problem=f"the served release cannot be read ({error})")
    return ServedRelease(aliases.champion, released_at.date())


ACCEPTANCE = "acceptance"
DAYS_A_COMMIT = 32
COUNTED_BY = (
    "sql/drifting/categories", "sql/drifting/traffic", "sql/drifting/sessions", "sql/drifting/session_counts",
    "sql/curating/macros/beginning", "sql/curating/macros/refused_in_words", "sql/curating/clean/graded_feedback",
    "sql/reading/ties/feedback_by_id",
)  # fmt: skip
"""What counts a session in the tests that need no texts."""
NO_TEXTS = "rows of the reference window are no longer in the lake, and its texts are not kept"


@dataclass
class DriftReport:
    """What a run compared."""

    release: str = ""
    reference: Reference | None = None
    window: str = ""
    """Which days the reference is, in words."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table `drift`, as they were written."""
    notes: list[str] = field(default_factory=list)

    @property
    def days(self) -> list[date]:
        return sorted({row["dt"] for row in self.rows})

    @property
    def alarms(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["alarm"] and row["dt"] == self.days[-1]]


def compare_traffic(
    tables: Tables,
    workload: str,
    settings: DriftSettings,
    seen: DriftInputs,
    release: ServedRelease = NO_RELEASE,
    now: datetime | None = None,
) -> DriftReport:
    """Compares every day that is over and was not compared yet, and writes its rows in commits of DAYS_A_COMMIT days."""
    drift_run = DriftRun(tables, workload, settings, seen, release, now or datetime.now(UTC))
    drift_run.compare_days()
    drift_run.compare_acceptance()
    return drift_run.report


class DriftRun:
    """One comparison of a workload's traffic with the reference window of a release."""

    def __init__(
        self, tables: Tables, workload: str, settings: DriftSettings, seen: DriftInputs, release: ServedRelease, now: datetime
    ):
        self._tables, self._workload, self._settings, self._seen = tables, workload, settings, seen
        self._release, self._now = release, now
        self.report = DriftReport(release.name, notes=[release.problem] if release.problem else [])
        judged = tables.rows_by_day("judgements", workload)
        self._rows = {
            day: count + judged.get(day, 0) for day, count in tables.rows_by_day("cleaned_interactions", workload).items()
        }
        """Numbers of rows by day of traffic."""
        self._files = DayFiles(tables, workload)
        self._newest = sorted(self._rows)[-max(settings.windows) :]
        """Days that windows of later days will have."""
        if ahead := [day for day in sorted(self._rows) if day > now.date()]:
            self.report.notes.append(
                f"{counted(len(ahead), 'day')} of the logs, up to {ahead[-1]}, {_is_or_are(len(ahead))} after today, "
                f"{now.date()}: a clock of the logs or of this machine is wrong, and these rows are not compared yet"
            )
        self._hours = self._served_hours()
        self._rate = settings.false_alarms_per_1000_days / 1_000 / (2 if self._hours else 1)
        self._digest = _digest(settings, seen, self._rate)

    def compare_days(self) -> None:
        """Compares the days after the reference window that were not compared with the files that they have now."""
        settings, report = self._settings, self.report
        chosen = ChosenWindow(
            self._tables.lake, self._workload, report.release, settings.reference_days, _counted_with(self._seen)
        )
        choice = chosen.choose(self._rows, self._now.date(), self._release.released_on)
        report.reference, report.window = choice.reference, choice.text
        report.notes += choice.notes
        if choice.reference is None:
            report.notes.append(self._no_reference())
        elif days := self._to_compare(choice.reference):
            counts, comparison = self._with_lost(choice.lost) if choice.lost else self._with_rows(chosen, choice, days)
            for first in range(0, len(days), DAYS_A_COMMIT):
                self._commit(
                    [
                        row
                        for day in days[first : first + DAYS_A_COMMIT]
                        for row in self._rows_of(day, counts, comparison, has_texts=choice.lost is None)
                    ]
                )

    def _window(self, day: date, length: int) -> list[date]:
        assert self.report.reference is not None
        return window_of(day, length, self._rows, self.report.reference.end)

    def _to_compare(self, reference: Reference) -> list[date]:
        """Days after the reference that are over and have a window that was not compared with the files that it has now."""
        with workbench() as connection:
            attach_slice(connection, self._tables, "drift", self._workload)
            known = {
                (row["dt"], row["window_days"]): row["files"]
                for row in rows(
                    connection,
                    "drifting/compared",
                    release=self.report.release,
                    settings=self._digest,
                    reference_start=reference.start,
                    reference_end=reference.end,
                ).to_pylist()
            }
        first = min(self._rows, default=self._now.date())

        def is_stale(day: date) -> bool:
            for length in self._settings.windows:
                window, before = self._window(day, length), known.get((day, length))
                is_cut = reference.end < first and day - timedelta(length - 1) < first
                if before is not None and is_cut:
                    continue  # retention removed its first days since it was compared
                if (length == 1 or len(window) > 1) and before != partition_key(self._files.of(*window)):
                    return True
            return False

        return [day for day in sorted(self._rows) if reference.end < day < self._now.date() and is_stale(day)]

    def _with_rows(
        self, chosen: ChosenWindow, choice: ReferenceChoice, days: list[date]
    ) -> tuple[CountCache, WindowComparison]:
        """Counts of days, and the comparison with a reference window whose rows are in the lake. Keeps the window."""
        reference = choice.reference
        assert reference is not None
        source = SessionCounts(self._tables, self._workload, reference, self._seen)
        counts = CountCache(self._tables, self._workload, reference.vocabulary, self._digest, source.of_day)
        counts.keep_days([*reference.comparison, *self._newest])
        usual = {day: counts.of_day(day) for day in reference.comparison}
        own_days = (*reference.vocabulary, *reference.comparison)
        window = ReferenceWindow(
            reference,
            source.known,
            chosen.counted_with,
            partition_key(self._files.of(*own_days)),
            {day: self._rows[day] for day in own_days},
            instead_of=choice.instead_of,
        )
        if window != chosen.window:
            chosen.keep(replace(window, counts={day: without_texts(each, source.columns) for day, each in usual.items()}))
        return counts, self._comparison(reference, usual, source)

    def _with_lost(self, lost: ReferenceWindow) -> tuple[CountCache, WindowComparison]:
        """Counts of days, and the comparison with the kept counts of a reference window whose rows left the lake."""
        source = SessionCounts(self._tables, self._workload, lost.reference, self._seen, lost.known)
        counts = CountCache(self._tables, self._workload, (), f"{self._digest}{lost.files}", source.of_day)
        counts.keep_days(self._newest)
        return counts, self._comparison(lost.reference, lost.counts, source)

    def _comparison(self, reference: Reference, usual: Mapping[date, Counts], source: SessionCounts) -> WindowComparison:
        return WindowComparison(
            reference, usual, source.columns, self._settings, self._rate, f"{self._workload}/{self.report.release}"
        )

    def _rows_of(self, day: date, counts: CountCache, comparison: WindowComparison, has_texts: bool) -> list[dict[str, Any]]:
        near = {other: counts.of_day(other) for other in self._window(day, max(self._settings.windows))}
        results = comparison.of_day(day, near)
        if not has_texts:
            one_of_each = {result.window_days: result for result in results}.values()
            results += [
                Result(
                    result.day,
                    result.window_days,
                    test,
                    sessions=result.sessions,
                    reference_sessions=result.reference_sessions,
                    problem=NO_TEXTS,
                )
                for result in one_of_each
                for test in TEXT_TESTS
            ]
        windows = [self._window(day, result.window_days) for result in results]
        return [
            self._row(
                result, comparison.reference, sum(self._rows[each] for each in window), partition_key(self._files.of(*window))
            )
            for result, window in zip(results, windows, strict=True)
        ]

    def _row(self, result: Result, reference: Reference, count: int, files: str | None = None) -> dict[str, Any]:
        values = asdict(result) | {"problem": result.problem or None}
        return {
            "workload": self._workload,
            "release": self.report.release,
            "dt": values.pop("day"),
            **values,
            "reference_start": reference.start,
            "reference_end": reference.end,
            "rows": count,
            "settings": self._digest,
            "ts": self._now,
            "files": files,
        }

    def _commit(self, part: list[dict[str, Any]]) -> None:
        tests, days = (sorted({row[column] for row in part}) for column in ("test", "dt"))
        if days:
            self._tables.replace(
                "drift",
                pa.Table.from_pylist(part, schema=SCHEMAS["drift"]),
                workload=self._workload,
                release=self.report.release,
                dt=days,
                test=tests,
            )
        self.report.rows += part

    def _served_hours(self) -> list[HourlyDrafts]:
        """Hours that servers reported for the release, else of captured requests; what cannot be true is named."""
        tables, workload, release = self._tables, self._workload, self._release.name or None
        with workbench() as connection:
            attach_slice(connection, tables, "serving_metrics", workload)
            backwards, too_many = run(connection, "drifting/odd_windows").fetchall()[0]
            hours = rows(connection, "drifting/served_hours", release=release).to_pylist()
            if not hours and tables.holds("interactions", workload, "drafts"):
                attach_slice(connection, tables, "interactions", workload)
                hours = rows(connection, "drifting/captured_hours", release=release, chats=CHATS_SOURCE).to_pylist()
        for count, what, why in (
            (backwards, "an end before the beginning", "a clock went backwards, of the server or of what reads its metrics"),
            (too_many, "more accepted than drafted tokens", "the server was restarted within, or its counters are mixed up"),
        ):
            if count:
                self.report.notes.append(
                    f"{counted(count, 'window')} of serving_metrics with {what} {_is_or_are(count)} left out: {why}"
                )
        return [HourlyDrafts(row["hour"].astimezone(UTC), row["drafts"], row["accepted_tokens"]) for row in hours]

    def compare_acceptance(self) -> None:
        """Charts the served hours, and writes the days that are new or changed: a late window changes the sums after it."""
        if not self._hours:
            return
        chart = acceptance(self._hours, self._settings, self._rate, self._now, f"{self._workload}/{self.report.release}")
        if chart.problem:
            self.report.notes.append(f"acceptance is not compared: {chart.problem}")
            return
        assert chart.start is not None and chart.end is not None
        with workbench() as connection:
            attach_slice(connection, self._tables, "drift", self._workload)
            known = {
                row["dt"]: (row["value"], row["bound"], row["settings"])
                for row in rows(connection, "drifting/acceptance_compared", release=self.report.release).to_pylist()
            }
        reference = Reference(chart.start, chart.end, (), ())
        self._commit(
            [
                self._row(Result(each.day, 1, ACCEPTANCE, value=each.sum, bound=chart.bound, alarm=each.alarm), reference, 0)
                for each in chart.days
                if known.get(each.day) != (each.sum, chart.bound, self._digest)
            ]
        )

    def _no_reference(self) -> str:
        length, past = self._settings.reference_days, sorted(day for day in self._rows if day < self._now.date())
        if not past:
            return "there is no day of traffic that is over: nothing is compared yet"
        return (
            f"the reference window is the first {length} days of traffic ({past[0]} on), of which "
            f"{counted((past[-1] - past[0]).days + 1, 'day')} are over: nothing is compared yet; drift.reference_days "
            "makes it shorter"
        )


def _is_or_are(count: int) -> str:
    return "is" if count == 1 else "are"


def _counted_with(seen: DriftInputs) -> str:
    """Digest of what determines session counts for a fixed vocabulary; a window whose rows are gone needs the same one."""
    return _digest_of([TESTS, _judge(seen), seen.scales], source_digest(*COUNTED_BY))


def _judge(seen: DriftInputs) -> list[str] | None:
    return [seen.judge.model, seen.judge.prompt_sha256] if seen.judge else None


def _digest(settings: DriftSettings, seen: DriftInputs, rate: float) -> str:
    return _digest_of(
        [settings.model_dump(mode="json"), _judge(seen), seen.scales, rate], source_digest("resources/drifting/drift.py")
    )


def _digest_of(values: list[Any], code: str) -> str:
    return hashlib.sha256(f"{json.dumps(values, sort_keys=True)}{code}".encode()).hexdigest()[:16]
