"""What keeps a cause from being decided now: a candidate that waits, a run at work, a cool-down, quiet hours.

    held = held_by(seen, decisions, settings, now)         # Hold("cool_down", "..."), or None

A held cause is written to the table once for each kind of hold, and decided when the hold ends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from model_ops.backoff import pause_after
from resources.deciding.decision import FAILED, Decision
from resources.deciding.evidence import Evidence
from resources.deciding.settings import DecideSettings
from resources.releasing.closed_times import closed_by

LEAST_BACK_OFF = timedelta(hours=1)


@dataclass(frozen=True)
class Hold:
    kind: str
    text: str
    until: datetime | None = None
    """When it ends by itself; None if it does not."""


def held_by(seen: Evidence, decisions: Sequence[Decision], settings: DecideSettings, now: datetime,
            despite: Collection[str] = ()) -> Hold | None:
    """The first hold. One run at a time, and one candidate at a time: a second one would replace what a person looks at.

    despite: `cool_down`, `quiet`: what a person has set aside for this cause.
    """
    going = next((each for each in decisions if each.is_open and each.started), None)
    if going is not None and not (going.outcome == "waiting" and going.run_id):
        return Hold("at_work", f"the run of decision {going.decision_id} is at work")
    if seen.candidate:
        return Hold("candidate", f"release {seen.candidate} waits for an approval: millrace approve {seen.candidate}")
    if "cool_down" not in despite and (until := _cools_until(decisions, settings)) is not None and now < until:
        failures = _failures(decisions)
        after = f"{failures} failed in a row" if failures else "the last run ended"
        return Hold("cool_down", f"{after}, so nothing is started before {until:%Y-%m-%d %H:%M} UTC", until)
    return quiet_hold(settings, now, despite)


def quiet_hold(settings: DecideSettings, now: datetime, despite: Collection[str] = ()) -> Hold | None:
    """The hold of quiet hours; None outside of them, and where a person has set them aside."""
    if "quiet" not in despite and (quiet := closed_by(settings.quiet, settings.timezone, now)) is not None:
        return Hold("quiet", f"nothing is started now: automation.decide.quiet has {quiet!r} ({settings.timezone})")
    return None


def _cools_until(decisions: Sequence[Decision], settings: DecideSettings) -> datetime | None:
    ended = [each for each in decisions if each.started and each.settled_ts is not None]
    if not ended:
        return None
    last = max(each.settled_ts for each in ended if each.settled_ts is not None)
    failures, wait = _failures(decisions), timedelta(hours=settings.cool_down_hours)
    if failures:
        longest = timedelta(days=settings.most_back_off_days)
        wait = max(wait, pause_after(failures + 1, max(wait, LEAST_BACK_OFF), longest))
    return last + wait


def _failures(decisions: Sequence[Decision]) -> int:
    """Runs that failed since the last one that did not."""
    count = 0
    ended = [each for each in decisions if each.started and not each.is_open]
    for each in sorted(ended, key=lambda each: each.ts, reverse=True):
        if each.outcome not in FAILED:
            break
        count += 1
    return count
