"""Which causes of a retraining hold now, each in one sentence, and what keeps a cause from being decided now.

Holds: a candidate that waits, a run at work, a cool-down, quiet hours. A held cause is written to the table once for each kind
of hold, and decided when the hold ends."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from croniter import croniter

from model_ops.machine import pause_after
from resources.deciding.decisions import FAILED, Decision
from resources.deciding.evidence import CAUSES, Cause, DecideSettings, Episode, Evidence
from resources.deciding.requests import RetrainingRequest
from resources.releases import closed_times

BAD_FEEDBACK = "bad_feedback"
OF_ANSWERS = (BAD_FEEDBACK, "quality", "refusals", "broken_answers", "errors")
"""Tests of the table `drift` about how good answers are."""
ACCEPTANCE = "acceptance"


@dataclass(frozen=True)
class RetrainingCause:
    """A cause that holds."""

    kind: Cause
    text: str
    window: str
    """Identifies the cause, so that it is decided once."""
    request: RetrainingRequest | None = None
    """What a person asked for; None for a cause that the lake shows."""


def requested_causes(requests: Iterable[RetrainingRequest]) -> list[RetrainingCause]:
    """The causes that people named. They come before all that was noticed, whatever the recipe lists."""
    return [RetrainingCause("request", each.cause_text, each.request_id, each) for each in requests]


def causes(seen: Evidence, settings: DecideSettings) -> list[RetrainingCause]:
    """Every cause that holds, most telling first. Causes that the recipe does not list are left out."""
    by_kind = {each.kind: each for each in (*_alarms(seen), *_new_logs(seen, settings))}
    if seen.schedule_due:
        text = f"automation.retrain.cron was due on {seen.schedule_due}"
        by_kind["schedule"] = RetrainingCause("schedule", text, seen.schedule_due)
    return [by_kind[kind] for kind in CAUSES if kind in by_kind and kind in settings.causes]


def _alarms(seen: Evidence) -> Iterator[RetrainingCause]:
    """Causes by tests of the table `drift`; each is named by its first day."""
    going: dict[Cause, list[Episode]] = {}
    for each in seen.episodes:
        kind: Cause = "acceptance" if each.test == ACCEPTANCE else "feedback" if each.test in OF_ANSWERS else "drift"
        going.setdefault(kind, []).append(each)
    for kind, episodes in going.items():
        first, tests = min(each.start for each in episodes), ", ".join(map(str, episodes))
        text = {
            "acceptance": f"the served acceptance length fell below the release's own profile on {first}",
            "feedback": f"answers are worse than in the release's reference window: {tests}",
            "drift": f"the traffic differs from the release's reference window: {tests}",
        }[kind]
        if kind == "acceptance" and seen.tau_served and seen.tau_released:
            text += f": {seen.tau_served:.3f} tokens per forward pass in the last days, "
            text += f"{seen.tau_released:.3f} in the release's report"
        yield RetrainingCause(kind, text, f"{first}")


def _new_logs(seen: Evidence, settings: DecideSettings) -> Iterator[RetrainingCause]:
    trained = seen.drafter or seen.model
    if trained is None or seen.newest_day is None:
        return
    new = max(0, seen.rows - trained.rows)
    if new >= settings.least_new_rows and new >= settings.least_new_share * trained.rows:
        text = f"{new:,} rows were logged since {trained.version} was trained on {trained.rows:,}"
        newest = seen.newest_day
        yield RetrainingCause("new_logs", f"{text}; the newest day is {newest}", f"{trained.version}/{newest}")


CAUGHT_UP = timedelta(days=1)
"""How long after its time a schedule still counts: a daemon that was away for a week does not make up for it."""


def due(cron: str, timezone: str, now: datetime) -> str:
    """The newest time of the schedule, in its time zone, if it is at most a day ago; "" otherwise."""
    last = croniter(cron, now.astimezone(ZoneInfo(timezone))).get_prev(datetime)
    return "" if now - last > CAUGHT_UP else last_time(cron, timezone, now)


def last_time(cron: str, timezone: str, now: datetime) -> str:
    """The newest time of the schedule, in its time zone."""
    return f"{croniter(cron, now.astimezone(ZoneInfo(timezone))).get_prev(datetime):%Y-%m-%d %H:%M}"


def next_time(cron: str, timezone: str, now: datetime) -> datetime:
    """The next time of the schedule."""
    return croniter(cron, now.astimezone(ZoneInfo(timezone))).get_next(datetime)


LEAST_BACK_OFF = timedelta(hours=1)


@dataclass(frozen=True)
class Hold:
    kind: str
    text: str
    until: datetime | None = None
    """When it ends by itself; None if it does not."""


def held_by(
    seen: Evidence, decisions: Sequence[Decision], settings: DecideSettings, now: datetime, despite: Collection[str] = ()
) -> Hold | None:
    """The first hold. One run at a time, and one candidate at a time: a second one would replace what a person looks at.
    despite: `cool_down`, `quiet`: what a person has set aside for this cause."""
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
    if "quiet" not in despite and (quiet := closed_times.closed_by(settings.quiet, settings.timezone, now)) is not None:
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
