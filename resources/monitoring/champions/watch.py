"""Watches a new champion for a stated time after its promotion, and rolls back if it does worse than it should.

Each look reads the served windows (serving_metrics) and the sessions (interactions, feedback) since the promotion, and those
of the champion before it. A rollback happens where the evidence of one signal is strong enough (evidence.py): once for a
promotion, never for one that a person repeated after it, and only if the endpoint did not move since it was read. It is an
entry of the endpoint's log like any other. Nothing is kept between looks but what `WatchedSessions` remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from resources.curating import FeedbackRules, FeedbackScale, attach_graded_feedback, feedback_scales
from resources.endpoints import Actor, Aliases, Endpoint, EndpointError, EndpointLogEntry, roll_back, rollback_target
from resources.lake import LakeLayout, Tables, attach_slice, rows, run, workbench
from resources.manifests import ManifestError
from resources.monitoring.champions.evidence import MetricsWindow, WatchSignal
from resources.monitoring.champions.served_acceptance import (
    compare_acceptance,
    compare_errors,
    compare_sessions,
    from_report,
    from_windows,
)
from resources.reading import CHATS_SOURCE as RATED
from resources.releases import Release, ReleaseError, WatchSettings, read_release

READ = ("interactions", "cleaned_interactions", "feedback")
LONGEST_REASON = 1_900


@dataclass(frozen=True)
class Look:
    sentence: str
    """The state in words."""
    release: str = ""
    """Release that is watched; "" for none."""
    promotion: int = 0
    findings: list[WatchSignal] = field(default_factory=list)
    """Findings of each signal."""
    rolled_back: Aliases | None = None
    """The aliases after the rollback of this look."""


@dataclass
class WatchedSessions:
    """Sessions of the last look, with settings and the tables' versions they were read at: reading days of rows every minute
    is dear."""

    key: tuple[Any, ...] = ()
    findings: list[WatchSignal] = field(default_factory=list)


def look_after_promotion(
    lake: LakeLayout,
    workload: str,
    settings: WatchSettings,
    now: datetime | None = None,
    rules: FeedbackRules | None = None,
    known: WatchedSessions | None = None,
) -> Look:
    """One look, and the rollback if one is due. rules: what feedback counts for. known: of the look before. Raises
    EndpointLogError for a broken log, EndpointError for aliases that cannot be read; LakeError, OSError for a lake that is
    away."""
    now = now or datetime.now(UTC)
    entries, aliases = Endpoint(lake, workload).seen()
    promotion = promotion_of(entries, aliases)
    if isinstance(promotion, str):
        return Look(f"nothing is watched: {promotion}")
    watch = _Watch(lake, workload, promotion, settings, now)
    remaining = promotion.entry.at + timedelta(hours=settings.hours) - now
    if remaining < timedelta(0):
        return Look(
            f"the watch of release {promotion.release} is over: it was promoted on "
            f"{promotion.entry.at:%Y-%m-%d %H:%M} UTC and watched for {settings.hours:g} hours"
        )
    if now < promotion.entry.at:
        return Look(
            f"release {promotion.release} was promoted on {promotion.entry.at:%Y-%m-%d %H:%M} UTC, which is in the "
            "future: the clock of this machine or of whoever approved it is wrong, and it is watched from then on"
        )
    findings = watch.findings(rules or FeedbackRules(), known or WatchedSessions())
    outside = [signal for signal in findings if signal.is_outside]
    if not outside:
        summary = "; ".join(signal.words or f"{signal.signal}: {signal.problem}" for signal in findings)
        return Look(
            f"release {promotion.release} is watched for {remaining.total_seconds() / 3_600:.1f} hours more: {summary}",
            promotion.release,
            promotion.entry.number,
            findings,
        )
    return watch.roll_back(aliases, findings, "; ".join(signal.words for signal in outside))


@dataclass(frozen=True)
class _Watch:
    lake: LakeLayout
    workload: str
    promotion: Promotion
    settings: WatchSettings
    now: datetime

    def roll_back(self, aliases: Aliases, findings: list[WatchSignal], why: str) -> Look:
        lake, release, number = self.lake, self.promotion.release, self.promotion.entry.number
        hours, most = (self.now - self.promotion.entry.at).total_seconds() / 3_600, self.settings.false_alarm
        reason = f"{hours:.1f} hours after its promotion {why} (false alarms: at most {most:z.2%} of promotions)"[
            :LONGEST_REASON
        ]
        try:
            target = rollback_target(lake, self.workload)
            lake.mirror.pull()
            after = roll_back(lake, lake.artefacts("release") / self.workload / target, watcher(reason), aliases)
        except (EndpointError, ReleaseError, ManifestError) as error:
            said = f"release {release} does worse than it should, and cannot be rolled back: {error} ({reason})"
            return Look(said, release, number, findings)
        return Look(f"release {release} was rolled back to {target}: {reason}", release, number, findings, after)

    @property
    def compared(self) -> tuple[tuple[str, datetime, datetime], ...]:
        """The new release and the one before it, each with begin and end of the time that is looked at."""
        since = self.promotion.entry.at
        before = since - timedelta(days=self.settings.reference_days)
        return (self.promotion.release, since, self.now), (self.promotion.before, before, since)

    def findings(self, rules: FeedbackRules, known: WatchedSessions) -> list[WatchSignal]:
        with workbench() as connection:
            attach_slice(connection, Tables(self.lake), "serving_metrics", self.workload)
            new, old = (
                [
                    MetricsWindow(
                        *(row[name].astimezone(UTC) for name in ("window_start", "window_end")),
                        *(row[name] for name in ("drafts", "accepted_tokens", "requests", "errors")),
                    )
                    for row in rows(connection, "watching/windows", release=release, since=start, until=end).to_pylist()
                ]
                for release, start, end in self.compared
            )
        errors = compare_errors(new, old, self.settings, self.promotion.entry.at, self.now)
        return [self.acceptance(new, old), errors, *self.sessions(rules, known)]

    def acceptance(self, new: list[MetricsWindow], old: list[MetricsWindow]) -> WatchSignal:
        if not any(window.drafts for window in new):
            return WatchSignal("acceptance", problem="no window of the new champion has drafts")
        before, settings = self.promotion.before, self.settings
        release = _release(self.lake, self.workload, self.promotion.release)
        gate = next((gate for gate in release.gates if gate.name == "acceptance_length"), None)
        report = (gate.measured, gate.low) if gate and gate.measured is not None and gate.low is not None else None
        should = None
        with suppress(ReleaseError):  # acceptance lengths of two ways of drafting say different things
            if _release(self.lake, self.workload, before).served_drafting == release.served_drafting:
                should = from_windows([window for window in old if window.drafts], before, settings, report)
        if should is None and report is not None:
            should = from_report(*report)
        if should is None:
            return WatchSignal(
                "acceptance",
                problem="the champion before drafts otherwise or has too few windows to compare with, and "
                "the release's report has no interval of its acceptance length",
            )
        with_drafts = [window for window in new if window.drafts]
        return compare_acceptance(with_drafts, should, settings, self.promotion.entry.at, self.now)

    def sessions(self, rules: FeedbackRules, known: WatchedSessions) -> list[WatchSignal]:
        tables, settings, entry = Tables(self.lake), self.settings, self.promotion.entry
        versions = [None if (table := tables.open(name)) is None else table.version() for name in READ]
        key = (entry.number, settings.model_dump_json(), rules.model_dump_json(), *versions)
        if key != known.key:
            scales = feedback_scales(tables, self.workload, rules)
            new, old = (_of_release(tables, self.workload, *of, scales) for of in self.compared)
            known.findings, known.key = compare_sessions(new, old, settings, entry.at), key
        return known.findings


def _of_release(
    tables: Tables, workload: str, release: str, since: datetime, until: datetime, scales: Mapping[str, FeedbackScale]
) -> list[dict[str, Any]]:
    days = [since.date() + timedelta(days=place) for place in range((until.date() - since.date()).days + 1)]
    try:
        digest = _release(tables.lake, workload, release).target.digest
    except ReleaseError:  # removed since: its rows are identified by their release alone
        digest = ""
    with workbench() as connection:
        for name in READ:
            attach_slice(connection, tables, name, workload, [day for day in tables.rows_by_day(name, workload) if day in days])
        for macro in ("beginning", "refused_in_words"):
            run(connection, f"curating/macros/{macro}")
        attach_graded_feedback(connection, scales)
        rows_ = rows(
            connection, "watching/sessions", release=release, digest=digest, since=since, until=until, chats=RATED
        ).to_pylist()
    return [row | {"last": row["last"].astimezone(UTC)} for row in rows_]


def _release(lake: LakeLayout, workload: str, version: str) -> Release:
    return read_release(lake.artefacts("release") / workload / version)


WATCH = "millrace watch"
"""The name in the log of whoever rolls back here."""


@dataclass(frozen=True)
class Promotion:
    entry: EndpointLogEntry
    """Log entry of the promotion."""
    before: str
    """The champion that it replaced."""

    @property
    def release(self) -> str:
        return str(self.entry.champion)


def promotion_of(entries: Sequence[EndpointLogEntry], aliases: Aliases) -> Promotion | str:
    """The promotion to watch, or why this champion is not watched: there is none, it is the first, it came by a rollback or by
    hand, or a person restored it after the watch rolled it back."""
    if aliases.champion is None:
        return "no release is served yet"
    moved, before = None, None
    for entry in entries:
        if entry.champion is not None and entry.champion != before:
            moved, before = entry, entry.champion
    if moved is None or moved.champion != aliases.champion:
        return "the endpoint's log does not say how its champion came"
    release = moved.champion
    if moved.action == "rolled back":
        why = f": {moved.reason}" if moved.reason else ""
        return f"release {release} came back by a rollback ({moved.by}, {moved.at:%Y-%m-%d %H:%M} UTC{why})"
    if moved.action != "promoted":
        return f"release {release} was not promoted by an approval ({moved.action} by {moved.by})"
    if any(entry.action == "rolled back" and entry.by == WATCH and entry.replaces == release for entry in entries):
        return f"release {release} was rolled back by {WATCH} before, and a person brought it back: it is not rolled back again"
    if not moved.replaces:
        return f"release {release} is the first champion: there is none to return to"
    return Promotion(moved, moved.replaces)


def watcher(reason: str) -> Actor:
    """Who rolls back, and why."""
    return Actor(WATCH, "release.watch", reason)
