"""Decides about a workload: the first cause that holds and was not decided yet, weighed, within the budget and the quiet hours.

Nothing is written or started here: pipelines/graph/decide_sensor.py records the decision and asks Dagster for the run.

A budget holds in every window of seven days (of 1 / N weeks for less than one run a week): what started in it, with what it
really cost once that is known, and what a run is predicted to take, are at most the amount. What the last run of a window costs
beyond its prediction comes on top, and what a person starts despite the budget."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from resources.deciding.causes import RetrainingCause, causes, held_by, last_time, next_time, requested_causes
from resources.deciding.costs import ActionCost, Work
from resources.deciding.decisions import REQUEST, Action, Decision, Option, decision_id
from resources.deciding.evidence import BudgetSettings, DecideSettings, Evidence, RecipeFacts
from resources.deciding.gather import gather
from resources.deciding.options import WISHES, weigh
from resources.deciding.requests import Requests, RetrainingRequest, folder_of
from resources.lake import LakeLayout, Tables, slice_stamp

SCHEDULE = "schedule"
LOOKS_AGAIN = timedelta(minutes=15)
"""While something is held that ends at no known time."""


@dataclass(frozen=True)
class DecisionStep:
    decision: Decision | None
    again_at: datetime
    work: Work | None = None


def decide(lake: LakeLayout, facts: RecipeFacts, decisions: Sequence[Decision], now: datetime | None = None) -> DecisionStep:
    """The next decision. decisions: all so far, settled as far as is known."""
    settings = facts.decide
    now = now or datetime.now(UTC)
    seen, costs = gather(lake, facts, now)
    seen = _with_held_schedule(seen, facts, decisions, now)
    known = {each.decision_id for each in decisions}
    every = [*requested_causes(Requests(lake, facts.workload).waiting(decisions)), *causes(seen, settings)]
    undecided = [cause for cause in every if _id(cause, seen) not in known]
    if not undecided:
        looks = [datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1)]  # nothing changes before
        looks += [next_time(facts.cron, settings.timezone, now)] if facts.cron else []
        return DecisionStep(None, min(looks))
    held: list[tuple[RetrainingCause, DecisionStep]] = []
    for cause in undecided:
        hold = held_by(seen, decisions, settings, now, _despite(cause))
        if hold is not None:
            row = _row(cause, seen, ([], "nothing", hold.text), settings, now, held=hold.kind)
            held.append((cause, DecisionStep(row, min(hold.until or now + LOOKS_AGAIN, now + LOOKS_AGAIN))))
            continue
        row = _weighed(cause, seen, costs, facts, decisions, now)
        if row.decision_id in known:
            continue
        starts = row.outcome == "waiting"
        return DecisionStep(row, now, Work.of(row, facts) if starts else None)
    return _held(held, known) if held else DecisionStep(None, now + LOOKS_AGAIN)


def _held(held: Sequence[tuple[RetrainingCause, DecisionStep]], known: Collection[str]) -> DecisionStep:
    """What is written where every cause is held. All wait for the same, unless a person has set it aside, so the first one says
    it for all; a time of the schedule has a row of its own, by which it is known when the hold ends."""
    first = held[0][1]
    wanted = [first, *(step for cause, step in held[1:] if cause.kind == SCHEDULE)]
    new = (step for step in wanted if step.decision and step.decision.decision_id not in known)
    return next(new, replace(first, decision=None))


def _with_held_schedule(seen: Evidence, facts: RecipeFacts, decisions: Sequence[Decision], now: datetime) -> Evidence:
    """A time of the schedule that was held stays due until it is decided, or the next time comes."""
    settings = facts.decide
    if not facts.cron or seen.schedule_due:
        return seen
    last = last_time(facts.cron, settings.timezone, now)
    held = (each.evidence for each in decisions if each.cause == SCHEDULE and not each.dry_run)
    was_held = any(each.get("held") and each.get("window") == last for each in held)
    return replace(seen, schedule_due=last) if was_held else seen


def preview(
    request: RetrainingRequest, lake: LakeLayout, facts: RecipeFacts, decisions: Sequence[Decision], now: datetime
) -> tuple[Decision, str]:
    """What would be decided about a request if it was made now, and the sentence about what would hold it; "" if nothing
    would."""
    settings = facts.decide
    seen, costs = gather(lake, facts, now)
    [cause] = requested_causes([request])
    hold = held_by(seen, decisions, settings, now, request.despite)
    row = _weighed(cause, seen, costs, facts, decisions, now)
    return replace(row, dry_run=True, outcome="not_run"), hold.text if hold is not None else ""


def _weighed(
    cause: RetrainingCause,
    seen: Evidence,
    costs: Mapping[Action, ActionCost],
    facts: RecipeFacts,
    decisions: Sequence[Decision],
    now: datetime,
) -> Decision:
    """The decision about a cause that nothing holds: the least that helps, if the budget suffices."""
    settings = facts.decide
    options, action, why = weigh(cause, seen, costs, facts, decisions, now)
    held, option = "", next(each for each in options if each.action == action)
    if action != "nothing" and "budget" not in _despite(cause):
        seconds, unknown = option.predicted_cost_s, costs[action].unknown if action in costs else ()
        hours = seconds * settings.devices / 3600 if seconds is not None else None
        refused = refusal(settings.budget, decisions, hours, option.predicted_money, now, unknown)
        if refused is not None:
            options = [replace(each, why_not=refused) if each is option else each for each in options]
            action, why, held = "nothing", f"nothing is run: {refused}", "budget"
    if settings.dry_run:
        held = held or "dry_run"
    return _row(cause, seen, (options, action, why), settings, now, held)


def _row(
    cause: RetrainingCause,
    seen: Evidence,
    chosen: tuple[list[Option], Action, str],
    settings: DecideSettings,
    now: datetime,
    held: str,
) -> Decision:
    """chosen: options, action, and why."""
    evidence = seen.as_record() | {"window": cause.window, **({"held": held} if held else {}), "widened": bool(seen.episodes)}
    if cause.request:
        evidence[REQUEST] = cause.request.as_record()
    about = (seen.workload, _id(cause, seen, held), now, cause.kind, cause.text, evidence)
    starts = chosen[1] != "nothing" and not settings.dry_run
    return Decision(*about, *chosen, settings.dry_run, outcome="waiting" if starts else "not_run")


def _id(cause: RetrainingCause, seen: Evidence, held: str = "") -> str:
    """A cron's time and a base's files are decided once, also where the release changes meanwhile."""
    return decision_id(seen.workload, cause.kind, "" if cause.kind in WISHES else seen.release, cause.window, held)


def _despite(cause: RetrainingCause) -> tuple[str, ...]:
    return cause.request.despite if cause.request is not None else ()


WEEK = timedelta(days=7)
NEVER_ENOUGH = "never: it is more than a week's"
"""Of a refusal: waiting does not help."""
UNKNOWN_COST = "is set, and what a run costs is unknown"
"""Of a refusal: neither does it here."""


def refusal(
    settings: BudgetSettings,
    decisions: Sequence[Decision],
    cost_hours: float | None,
    money: float | None,
    now: datetime,
    unknown: Sequence[str] = (),
) -> str | None:
    """Why a run of this predicted cost is not within the budget; None if it is. cost_hours: device hours; None: unknown,
    because of the stages in `unknown`. money: None where no price is known either."""
    started = [each for each in decisions if each.started]
    runs, hours = settings.runs_per_week, settings.device_hours_per_week
    for name, a_week, wanted, unit, uses in (
        ("runs_per_week", runs, 1.0, "runs", [(each.ts, 1.0) for each in started]),
        ("device_hours_per_week", hours, cost_hours, "device hours", [(each.ts, each.spent_hours) for each in started]),
        ("money_per_week", settings.money_per_week, money, "money", [(each.ts, each.spent_money or 0.0) for each in started]),
    ):
        if a_week is None:
            continue
        if a_week == 0:
            return f"automation.decide.budget.{name} is 0"
        if wanted is None:
            return f"automation.decide.budget.{name} {UNKNOWN_COST}: {_remedy(cost_hours, unknown)}"
        rarely = unit == "runs" and a_week < 1
        capacity, window = (1.0, WEEK / a_week) if rarely else (a_week, WEEK)
        if wanted > capacity:
            again: str | None = NEVER_ENOUGH
        else:
            at = _free_at(uses, capacity - wanted, window, now)
            again = f"about {at:%Y-%m-%d %H:%M} UTC" if at is not None else None
        if again is not None:
            used = sum(amount for ts, amount in uses if ts > now - window)
            return (
                f"the budget of {unit} is used: {used:.3g} of {a_week:g} a week, and {wanted:.3g} are needed; it suffices "
                f"{again} (automation.decide.budget.{name})"
            )
    return None


def _free_at(uses: Sequence[tuple[datetime, float]], most: float, window: timedelta, now: datetime) -> datetime | None:
    """When the uses within a window are at most `most`; None: they are now."""
    within = sorted(use for use in uses if use[0] > now - window)
    used, at = sum(amount for _, amount in within), None
    for ts, amount in within:
        if used <= most + 1e-9:
            break
        used, at = used - amount, ts + window
    return at


def _remedy(cost_hours: float | None, unknown: Sequence[str]) -> str:
    if cost_hours is not None:
        return "set price_per_device_hour"
    return (
        f"nothing says how long {' and '.join(unknown) or 'a stage of it'} takes; a run by hand measures it: "
        "millrace run RECIPE"
    )


TABLES = ("cleaned_interactions", "drift", "serving_metrics", "retraining_decisions")
POINTERS = (
    "models/{}/speculator/current.json",
    "models/{}/sft_model/current.json",
    "models/{}/base_model/current.json",
    "datasets/{}/evaluation_report/current.json",
    "endpoints/{}.json",
)


def pulse(lake: LakeLayout, facts: RecipeFacts) -> str:
    """A digest over the workload's slices of the tables, its pointers, requests and schedule."""
    tables = Tables(lake)
    parts = [facts.cron, *(slice_stamp(tables, name, facts.workload) for name in TABLES)]
    for pattern in POINTERS:
        path = lake.root / pattern.format(facts.workload)
        if pattern.startswith("endpoints"):
            lake.mirror.pull_file(path)
        parts.append(_stat(path))
    requests = folder_of(lake, facts.workload)
    lake.mirror.pull_folder(requests)
    parts.append(_stat(requests))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _stat(path: Path) -> str:
    try:
        stat = path.stat()
    except OSError:
        return ""
    return f"{stat.st_mtime_ns}-{stat.st_size}-{stat.st_ino}"
