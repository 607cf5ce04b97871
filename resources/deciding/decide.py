"""Decides about a workload: the first cause that holds and was not decided yet, weighed, within the budget and the quiet hours.

    made = decide(lake, facts, settings, decisions, now)
    made.decision            # None: nothing new
    made.again_at            # when to look again although nothing changed
    made.work                # what its run makes; None where nothing is started
    preview(request, lake, facts, settings, decisions, now)      # what would be decided about a request, before it is made

Nothing is written or started here: pipelines/graph/deciding.py records the decision and asks Dagster for the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from resources.deciding.actions import Work, work_decided
from resources.deciding.budget import refusal
from resources.deciding.causes import Found, asked, causes
from resources.deciding.correction import recent
from resources.deciding.decision import Action, Decision, Option, decision_id
from resources.deciding.evidence import Evidence
from resources.deciding.facts import RecipeFacts
from resources.deciding.gather import gather
from resources.deciding.holding import held_by
from resources.deciding.hub_base import LOOKS_EVERY
from resources.deciding.options import WISHES, Predicted, weigh
from resources.deciding.requests import REQUEST, Request, Requests
from resources.deciding.schedule import last_time, next_time
from resources.deciding.settings import DecideSettings
from resources.lake import Lake

SCHEDULE = "schedule"
LOOKS_AGAIN = timedelta(minutes=15)
"""While something is held that ends at no known time."""


@dataclass(frozen=True)
class Made:
    decision: Decision | None
    again_at: datetime
    work: Work | None = None


def decide(lake: Lake, facts: RecipeFacts, settings: DecideSettings, decisions: Sequence[Decision],
           now: datetime | None = None) -> Made:
    """The next decision. decisions: all so far, settled as far as is known."""
    now = now or datetime.now(UTC)
    seen, predicted = gather(lake, facts, settings, now)
    seen = _with_held_schedule(seen, facts, settings, decisions, now)
    known = {each.decision_id for each in decisions}
    every = [*asked(Requests(lake, facts.workload).waiting(decisions)), *causes(seen, settings)]
    found = [cause for cause in every if _id(cause, seen) not in known]
    if not found:
        return Made(None, min(_looks(facts, settings, now)))
    held: list[tuple[Found, Made]] = []
    for cause in found:
        hold = held_by(seen, decisions, settings, now, _despite(cause))
        if hold is not None:
            held.append((cause, Made(_row(cause, seen, [], "nothing", hold.text, settings, now, held=hold.kind),
                                     min(hold.until or now + LOOKS_AGAIN, now + LOOKS_AGAIN))))
            continue
        row = _weighed(cause, seen, predicted, facts, settings, decisions, now)
        if row.decision_id in known:
            continue
        starts = row.outcome == "waiting"
        return Made(row, now, work_decided(row, facts, settings) if starts else None)
    return _held(held, known) if held else Made(None, now + LOOKS_AGAIN)


def _looks(facts: RecipeFacts, settings: DecideSettings, now: datetime) -> Iterator[datetime]:
    """When to look again where nothing changes before."""
    yield datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1)
    if facts.base_repository:
        yield now + LOOKS_EVERY
    if facts.cron:
        yield next_time(facts.cron, settings.timezone, now)


def _held(held: Sequence[tuple[Found, Made]], known: Collection[str]) -> Made:
    """What is written where every cause is held. All wait for the same, unless a person has set it aside, so the first one says
    it for all; a time of the schedule has a row of its own, by which it is known when the hold ends."""
    first = held[0][1]
    wanted = [first, *(made for cause, made in held[1:] if cause.kind == SCHEDULE)]
    new = (made for made in wanted if made.decision and made.decision.decision_id not in known)
    return next(new, replace(first, decision=None))


def _with_held_schedule(seen: Evidence, facts: RecipeFacts, settings: DecideSettings, decisions: Sequence[Decision],
                        now: datetime) -> Evidence:
    """A time of the schedule that was held stays due until it is decided, or the next time comes."""
    if not facts.cron or seen.schedule_due:
        return seen
    last = last_time(facts.cron, settings.timezone, now)
    held = (each.evidence for each in decisions if each.cause == SCHEDULE and not each.dry_run)
    was_held = any(each.get("held") and each.get("window") == last for each in held)
    return replace(seen, schedule_due=last) if was_held else seen


def preview(request: Request, lake: Lake, facts: RecipeFacts, settings: DecideSettings, decisions: Sequence[Decision],
            now: datetime) -> tuple[Decision, str]:
    """What would be decided about a request if it was made now, and the sentence about what would hold it; "" if nothing
    would."""
    seen, predicted = gather(lake, facts, settings, now)
    [cause] = asked([request])
    hold = held_by(seen, decisions, settings, now, request.despite)
    row = _weighed(cause, seen, predicted, facts, settings, decisions, now)
    return replace(row, dry_run=True, outcome="not_run"), hold.text if hold is not None else ""


def _weighed(cause: Found, seen: Evidence, predicted: Mapping[Action, Predicted], facts: RecipeFacts, settings: DecideSettings,
             decisions: Sequence[Decision], now: datetime) -> Decision:
    """The decision about a cause that nothing holds: the least that helps, if the budget suffices."""
    options, action, why = weigh(cause, seen, predicted, facts, settings, recent(decisions, now))
    held, option = "", next(each for each in options if each.action == action)
    if action != "nothing" and "budget" not in _despite(cause):
        refused = refusal(settings.budget, decisions, _device_hours(option, settings), option.predicted_money,
                          now, _unknown(predicted, action))
        if refused is not None:
            options = [replace(each, why_not=refused) if each is option else each for each in options]
            action, why, held = "nothing", f"nothing is run: {refused}", "budget"
    if settings.dry_run:
        held = held or "dry_run"
    return _row(cause, seen, options, action, why, settings, now, held)


def _row(cause: Found, seen: Evidence, options: list[Option], action: Action, why: str, settings: DecideSettings, now: datetime,
         held: str) -> Decision:
    starts = action != "nothing" and not settings.dry_run
    return Decision(
        seen.workload, _id(cause, seen, held), now, cause.kind, cause.text,
        {**seen.as_record(), "window": cause.window, **({"held": held} if held else {}), "widened": _drifts(seen),
         **({REQUEST: cause.request.as_record()} if cause.request else {})}, options, action, why,
        settings.dry_run, outcome="waiting" if starts else "not_run")


def _id(cause: Found, seen: Evidence, held: str = "") -> str:
    """A cron's time and a base's files are decided once, also where the release changes meanwhile."""
    return decision_id(seen.workload, cause.kind, "" if cause.kind in WISHES else seen.release, cause.window, held)


def _despite(cause: Found) -> tuple[str, ...]:
    return cause.request.despite if cause.request is not None else ()


def _device_hours(option: Option, settings: DecideSettings) -> float | None:
    return option.predicted_cost_s * settings.devices / 3600 if option.predicted_cost_s is not None else None


def _unknown(predicted: Mapping[Action, Predicted], action: Action) -> Sequence[str]:
    """Stages of an action whose cost is unknown."""
    return predicted[action].unknown if action in predicted else ()


def _drifts(seen: Evidence) -> bool:
    return bool(seen.episodes)
