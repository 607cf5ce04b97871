"""Watches a new champion for a stated time after its promotion, and rolls back if it does worse than it should.

    look = look_after_promotion(lake, "math-tutor", settings)
    look.sentence              # "release 3f2a... is watched for 21.4 hours more: ..."
    look.rolled_back           # Aliases after a rollback, or None

Each look reads the served windows (serving_metrics) and the sessions (interactions, feedback) since the promotion, and those
of the champion before it. A rollback happens where the evidence of one signal is strong enough (evidence.py): once for a
promotion, never for one that a person repeated after it, and only if the endpoint did not move since it was read. It is an
entry of the endpoint's log like any other. Nothing is kept between looks but what `Rows` remembers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

from resources.artefacts.manifest import ManifestError
from resources.lake import Lake
from resources.reading.chats import NAME as RATED
from resources.releasing.endpoints import Aliases, Endpoint, EndpointError
from resources.releasing.release import Release, ReleaseError, read_release
from resources.releasing.rollback import roll_back, rollback_target
from resources.releasing.watch_settings import WatchSettings
from resources.sql_files import attach_slice, rows, run, workbench
from resources.tables import Tables
from resources.watching.bad_shares import compared_errors, compared_sessions
from resources.watching.blocks import Window
from resources.watching.finding import Finding
from resources.watching.promotion import Promotion, promotion_of, watcher
from resources.watching.served_acceptance import compared, from_report, from_windows

READ = ("interactions", "cleaned_interactions", "feedback")
LONGEST_REASON = 1_900


@dataclass(frozen=True)
class Look:
    sentence: str
    """The state in words."""
    release: str = ""
    """Release that is watched; "" for none."""
    promotion: int = 0
    findings: list[Finding] = field(default_factory=list)
    """Findings of each signal."""
    rolled_back: Aliases | None = None
    """The aliases after the rollback of this look."""


@dataclass
class Rows:
    """Sessions of the last look, with settings and the tables' versions they were read at: reading days of rows every minute
    is dear."""

    key: tuple[Any, ...] = ()
    findings: list[Finding] = field(default_factory=list)


def look_after_promotion(lake: Lake, workload: str, settings: WatchSettings, now: datetime | None = None,
                         least: Mapping[str, float] | None = None, known: Rows | None = None) -> Look:
    """One look, and the rollback if one is due. least: lowest good value of feedback, by its name. known: of the look before.

    Raises EndpointLogError for a broken log, EndpointError for aliases that cannot be read; LakeError, OSError for a lake that
    is away.
    """
    now = now or datetime.now(UTC)
    entries, aliases = Endpoint(lake, workload).seen()
    promotion = promotion_of(entries, aliases)
    if isinstance(promotion, str):
        return Look(f"nothing is watched: {promotion}")
    remaining = promotion.entry.at + timedelta(hours=settings.hours) - now
    if remaining < timedelta(0):
        return Look(f"the watch of release {promotion.release} is over: it was promoted on "
                    f"{promotion.entry.at:%Y-%m-%d %H:%M} UTC and watched for {settings.hours:g} hours")
    if now < promotion.entry.at:
        return Look(f"release {promotion.release} was promoted on {promotion.entry.at:%Y-%m-%d %H:%M} UTC, which is in the "
                    "future: the clock of this machine or of whoever approved it is wrong, and it is watched from then on")
    findings = _findings(lake, workload, promotion, settings, now, least or {}, known or Rows())
    outside = [found for found in findings if found.is_outside]
    if not outside:
        summary = "; ".join(found.words or f"{found.signal}: {found.problem}" for found in findings)
        return Look(f"release {promotion.release} is watched for {remaining.total_seconds() / 3_600:.1f} hours more: {summary}",
                    promotion.release, promotion.entry.number, findings)
    return _rolled_back(lake, workload, promotion, aliases, settings, findings, outside, now)


def _rolled_back(lake: Lake, workload: str, promotion: Promotion, aliases: Aliases, settings: WatchSettings,
                 findings: list[Finding], outside: list[Finding], now: datetime) -> Look:
    hours = (now - promotion.entry.at).total_seconds() / 3_600
    why = "; ".join(found.words for found in outside)
    reason = (f"{hours:.1f} hours after its promotion {why} (false alarms: at most {settings.false_alarm:z.2%} of "
              "promotions)")[:LONGEST_REASON]
    try:
        target = rollback_target(lake, workload)
        lake.mirror.pull()
        after = roll_back(lake, lake.artefacts("release") / workload / target, watcher(reason), aliases)
    except (EndpointError, ReleaseError, ManifestError) as error:
        return Look(f"release {promotion.release} does worse than it should, and cannot be rolled back: {error} ({reason})",
                    promotion.release, promotion.entry.number, findings)
    return Look(f"release {promotion.release} was rolled back to {target}: {reason}", promotion.release, promotion.entry.number,
                findings, after)


def _findings(lake: Lake, workload: str, promotion: Promotion, settings: WatchSettings, now: datetime,
              least: Mapping[str, float], known: Rows) -> list[Finding]:
    tables, since = Tables(lake), promotion.entry.at
    before = since - timedelta(days=settings.reference_days)
    with workbench() as connection:
        attach_slice(connection, tables, "serving_metrics", workload)
        new, old = ([Window(row["window_start"].astimezone(UTC), row["window_end"].astimezone(UTC), row["drafts"],
                            row["accepted_tokens"], row["requests"], row["errors"])
                     for row in rows(connection, "watching/windows", release=release, since=start, until=end).to_pylist()]
                    for release, start, end in ((promotion.release, since, now), (promotion.before, before, since)))
    return [_acceptance(lake, workload, promotion, settings, new, old, now),
            compared_errors(new, old, settings, since, now),
            *_sessions(tables, workload, promotion, settings, now, least, known)]


def _acceptance(lake: Lake, workload: str, promotion: Promotion, settings: WatchSettings, new: list[Window], old: list[Window],
                now: datetime) -> Finding:
    if not any(window.drafts for window in new):
        return Finding("acceptance", problem="no window of the new champion has drafts")
    release = _release(lake, workload, promotion.release)
    gate = next((gate for gate in release.gates
                 if gate.name == "acceptance_length" and gate.measured is not None and gate.low is not None), None)
    report = None if gate is None else (gate.measured, gate.low)
    should = None
    if _drafts_alike(lake, workload, release, promotion.before):
        should = from_windows([window for window in old if window.drafts], promotion.before, settings, report)
    if should is None and report is None:
        return Finding("acceptance", problem="the champion before drafts otherwise or has too few windows to compare with, and "
                                             "the release's report has no interval of its acceptance length")
    should = should or from_report(*report)
    return compared([window for window in new if window.drafts], should, settings, promotion.entry.at, now)


def _drafts_alike(lake: Lake, workload: str, release: Release, before: str) -> bool:
    """Whether both releases draft by the same method as many tokens: else their acceptance lengths say different things."""
    try:
        return _release(lake, workload, before).served_drafting == release.served_drafting
    except ReleaseError:
        return False


def _sessions(tables: Tables, workload: str, promotion: Promotion, settings: WatchSettings, now: datetime,
              least: Mapping[str, float], known: Rows) -> list[Finding]:
    versions = [None if (table := tables.open(name)) is None else table.version() for name in READ]
    key = (promotion.entry.number, settings.model_dump_json(), json.dumps(dict(least), sort_keys=True), *versions)
    if key != known.key:
        since, before = promotion.entry.at, promotion.entry.at - timedelta(days=settings.reference_days)
        new, old = (_of_release(tables, workload, release, start, end, least) for release, start, end in (
            (promotion.release, since, now), (promotion.before, before, since)))
        known.findings, known.key = compared_sessions(new, old, settings, since), key
    return known.findings


def _of_release(tables: Tables, workload: str, release: str, since: datetime, until: datetime,
                least: Mapping[str, float]) -> list[dict[str, Any]]:
    days = [since.date() + timedelta(days=place) for place in range((until.date() - since.date()).days + 1)]
    try:
        digest = _release(tables.lake, workload, release).target.digest
    except ReleaseError:  # removed since: its rows are identified by their release alone
        digest = ""
    with workbench() as connection:
        for name in READ:
            attach_slice(connection, tables, name, workload, _held(tables, name, workload, days))
        for macro in ("beginning", "refused_in_words"):
            run(connection, f"curating/macros/{macro}")
        found = rows(connection, "watching/sessions", release=release, digest=digest, since=since, until=until,
                     names=list(least), least=list(least.values()), chats=RATED).to_pylist()
    return [row | {"last": row["last"].astimezone(UTC)} for row in found]


def _held(tables: Tables, name: str, workload: str, days: list[date]) -> list[date]:
    """Days that the table has."""
    return [day for day in tables.rows_by_day(name, workload) if day in days]


def _release(lake: Lake, workload: str, version: str) -> Release:
    return read_release(lake.artefacts("release") / workload / version)
