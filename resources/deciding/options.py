"""Weighs what could be done about a cause: the cost and the gain of each action, and the cheapest that is worth its cost.

Cost: the seconds of the action's last run; before there was one, of its stages as they were last made (costs.py).
Gain: what the action's last run gained, as `settle_decision` measured it. Where the served acceptance fell, a drafter gains
what was lost since the release. An action whose gain was never measured is tried, unless it could not pay back even if decoding
took no time at all. A measurement counts for RETRY_DAYS, so an action that failed is tried again later.

A drafter has to save its device hours within `payback_days`; a model has to learn at least `least_loss_gain`. The
schedule and a request are a person's own wish: they get a full run, or what the request names.

The time to decode is inversely proportional to the speed-up S, and S = tau / (1 + K c) with the same number of drafted tokens K
and cost of a draft c before and after. So a relative rise g of the acceptance length tau saves H (1 - S_old / S_new)
= H g / (1 + g) of the H device hours that a day's decoding takes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from model_ops.jobs import duration
from resources.deciding.causes import ACCEPTANCE, BAD_FEEDBACK, RetrainingCause
from resources.deciding.costs import ACTIONS, DRAFTERS, SPELLED, ActionCost
from resources.deciding.decisions import Action, Decision, Option
from resources.deciding.evidence import DecideSettings, Evidence, RecipeFacts

WISHES = ("schedule", "request")
MODELS = ("sft_continued", "full")
RETRY_DAYS = 60
RECOVERED = 0.80
"""Share of the lost acceptance that a continued drafter gets back of what a new one does: (2.174 - 1.141) / (2.433 - 1.141),
benchmarks/results/drafter_drift.json, acceptance at temperature 1."""


def weigh(
    cause: RetrainingCause,
    seen: Evidence,
    costs: Mapping[Action, ActionCost],
    facts: RecipeFacts,
    decisions: Sequence[Decision],
    now: datetime,
) -> tuple[list[Option], Action, str]:
    """Options by cost, the chosen action, and why in one sentence."""
    settings = facts.decide
    counted = [each for each in decisions if each.ts > now - timedelta(RETRY_DAYS)]
    nothing = Option("nothing", 0.0, 0.0 if settings.price_per_device_hour is not None else None, 0.0)
    options = [_option(action, cause, seen, costs.get(action, ActionCost()), facts, counted) for action in ACTIONS]
    options.sort(key=lambda each: each.predicted_cost_s if each.predicted_cost_s is not None else math.inf)
    chosen = next((each for each in options if not each.why_not), None)
    if chosen is None:
        return [nothing, *options], "nothing", _why_nothing(cause, seen, settings, options)
    others = [
        each if each is chosen or each.why_not else replace(each, why_not=f"{SPELLED[chosen.action]} costs less and is enough")
        for each in options
    ]
    asked = f"{cause.request.by} asked for {SPELLED[chosen.action]}" if cause.request else ""
    nothing = replace(nothing, why_not=asked or f"{SPELLED[chosen.action]} is worth its cost")
    return [nothing, *others], chosen.action, _why(cause, chosen)


def _option(
    action: Action, cause: RetrainingCause, seen: Evidence, cost: ActionCost, facts: RecipeFacts, decisions: Sequence[Decision]
) -> Option:
    settings = facts.decide
    runs = [each.cost_s for each in decisions if each.action == action and each.ended_well and each.cost_s is not None]
    seconds = runs[-1] if runs else cost.seconds
    if seen.episodes and seconds is not None:  # the evaluation takes drift_widens times as many rows as that of the last run
        seconds = max(seconds, cost.seconds or 0.0)
    hours = seconds * settings.devices / 3600 if seconds is not None else None
    price = settings.price_per_device_hour
    gain, says = _gain_of(action, cause, seen, decisions)
    money = hours * price if hours is not None and price is not None else None
    option = Option(action, seconds, money, gain, gain_says=says, stage_costs_s=dict(cost.stages))
    if action in DRAFTERS and hours is not None:
        days, requests = _payback(hours, gain, seen, settings)
        option = replace(option, payback_days=days, break_even_requests=requests)
    return replace(option, why_not=_why_not(action, cause, seen, option, facts, cost.unknown))


def _gain_of(action: Action, cause: RetrainingCause, seen: Evidence, decisions: Sequence[Decision]) -> tuple[float | None, str]:
    """The gain to count on, None if nothing was measured, and its source in words."""
    if action in DRAFTERS and cause.kind == ACCEPTANCE and seen.tau_released and seen.tau_served:
        share = RECOVERED if action == "drafter_continued" else 1.0
        return share * max(0.0, seen.tau_released / seen.tau_served - 1), (
            f"acceptance length {seen.tau_served:.3f} as served, {seen.tau_released:.3f} in the release's report; "
            f"{share:z.0%} of what was lost comes back"
        )
    alike = MODELS if action in MODELS else (action,)
    for last in reversed(decisions):
        if last.action in alike and last.outcome == "refused_by_gates":
            return min(0.0, last.gain or 0.0), f"the gates refused the release of decision {last.decision_id}"
        if last.action in alike and last.gain is not None:
            return last.gain, f"as decision {last.decision_id} measured"
        if last.action in alike and last.outcome in ("released", "no_better"):
            return 0.0, f"the run of decision {last.decision_id} left no measurement"
    return None, "was never measured"


def _payback(hours: float, gain: float | None, seen: Evidence, settings: DecideSettings) -> tuple[float | None, float | None]:
    """Days, and requests a day from which on it pays back, at the gain; where it is unknown, if decoding took no time."""
    a_day = seen.decode_hours_a_day
    if a_day is None or not seen.requests_a_day:
        return None, None
    gain = math.inf if gain is None else gain
    days = payback_days(hours, saved_hours_a_day(a_day, gain))
    return days, break_even_requests(hours, settings.payback_days or 30.0, a_day / seen.requests_a_day, gain)


def _why_not(
    action: Action, cause: RetrainingCause, seen: Evidence, option: Option, facts: RecipeFacts, unknown: Sequence[str]
) -> str:
    settings = facts.decide
    if seen.missing and not (cause.request is not None and action == "full"):
        return f"{', '.join(seen.missing)} was never made"
    if cause.kind == "drift" and not settings.drift_trains:
        return "drift of the traffic alone starts no training (automation.decide.drift_trains)"
    if action in DRAFTERS and not facts.policy.speculator:
        return "the recipe has no drafter"
    if action == "sft_continued" and "sft_model" not in facts.policy.stages:
        return "the recipe fine-tunes no model"
    if action == "sft_continued" and facts.as_adapter:
        return "release.form is adapter, and a continued model has no adapter on the base model"
    if action == "preference" and "preference_model" not in facts.policy.stages:
        return "the recipe trains on no preferences"
    if cause.request is not None:
        return "" if action == cause.request.action else f"{cause.request.by} asked for {SPELLED[cause.request.action]}"
    if cause.kind in WISHES:
        return "" if action == "full" else "it would leave out what a schedule is for"
    if cause.kind == "feedback" and action in DRAFTERS:
        return "a drafter changes how fast answers come, not what they say"
    if cause.kind == "acceptance" and action in ("sft_continued", "preference"):
        return "other answers bring no acceptance back"
    if action == "preference":
        return _why_no_preference(cause, seen, settings)
    if option.predicted_cost_s is None:
        return (
            f"its cost is unknown: no run of {' and '.join(unknown) or 'a stage of it'} was seen, and no version says how "
            "long it took"
        )
    return _too_little(action, seen, option, settings)


def _why_no_preference(cause: RetrainingCause, seen: Evidence, settings: DecideSettings) -> str:
    """The loss does not say what preference training gains, so the recipe has to say that feedback is enough of a cause."""
    if cause.kind != "feedback" or not any(each.test == BAD_FEEDBACK for each in seen.episodes):
        return "preferences are learnt where people like the answers less"
    if not settings.preference_on_feedback:
        return "nothing predicts what it would gain, and automation.decide.preference_on_feedback is off"
    return ""


def _too_little(action: Action, seen: Evidence, option: Option, settings: DecideSettings) -> str:
    gain = option.predicted_gain
    if action not in DRAFTERS:
        if gain is None or (gain >= settings.least_loss_gain and gain > 0):
            return ""
        return (
            f"its held-out loss fell by {gain:z.4f} nats a token the last time, less than {settings.least_loss_gain:g} "
            "(automation.decide.least_loss_gain)"
        )
    if gain is not None and gain <= 0:
        return f"its acceptance length would rise by {gain:z.2%} ({option.gain_says})"
    if settings.payback_days is None:
        return ""
    if seen.decode_hours_a_day is None:
        return (
            "whether it pays back is unknown: requests a day, tokens of an answer or tokens/s are; scrape the servers' "
            "metrics, or set automation.decide.tokens_per_second"
        )
    days = option.payback_days
    if days is None or days > settings.payback_days:
        said = "never" if days is None else f"after {duration(days * 86_400)}"
        at = "even if decoding took no time" if gain is None else f"with a gain of {gain:z.2%}"
        return (
            f"{at} it pays back {said}, and {settings.payback_days:g} days are asked for; it "
            f"would from {option.break_even_requests or 0:z,.0f} requests a day on"
        )
    return ""


def _why(cause: RetrainingCause, chosen: Option) -> str:
    what, seconds, gain = SPELLED[chosen.action], chosen.predicted_cost_s, chosen.predicted_gain
    cost = f" costs about {duration(seconds)}" if seconds is not None else ", whose cost is unknown,"
    money = f" ({chosen.predicted_money:z,.2f})" if chosen.predicted_money is not None else ""
    start = f"{what}{cost}{money}"
    if cause.kind in WISHES:
        return f"{start}: {cause.request.by if cause.request else 'the schedule'} asks for it"
    if chosen.action == "preference":
        return (
            f"{start}: people like the answers less, and automation.decide.preference_on_feedback is on; nothing "
            "predicts its gain, the gates measure it"
        )
    if gain is None:
        return f"{start}: its gain was never measured, and this run measures it"
    if chosen.action in DRAFTERS:
        back = f" and pays back in {duration(chosen.payback_days * 86_400)}" if chosen.payback_days is not None else ""
        return f"{start}{back}: the acceptance length rises by {gain:z.1%}, {chosen.gain_says}"
    return f"{start}: the held-out loss falls by {gain:z.4f} nats a token, {chosen.gain_says}"


def _why_nothing(cause: RetrainingCause, seen: Evidence, settings: DecideSettings, options: Sequence[Option]) -> str:
    if cause.request is not None:
        wanted = next(each for each in options if each.action == cause.request.action)
        return f"nothing, although {cause.request.by} asks for {SPELLED[wanted.action]}: {wanted.why_not}"
    if seen.missing:
        return (
            f"nothing: {', '.join(seen.missing)} was never made; the first run is a person's (millrace run RECIPE), and "
            "what follows is measured by it"
        )
    nearest = options[0]
    if cause.kind == "drift" and not settings.drift_trains:
        return (
            f"nothing: {nearest.why_not}; the next run's evaluation takes {settings.drift_widens:g} times as many rows "
            "and prompts"
        )
    return f"nothing pays back; of what costs least, {SPELLED[nearest.action]}: {nearest.why_not}"


def saved_hours_a_day(decode_hours_a_day: float, gain: float) -> float:
    """Device hours a day that a relative gain of the acceptance length saves; negative for a loss."""
    if gain == math.inf:
        return decode_hours_a_day
    return decode_hours_a_day * gain / (1 + gain) if gain > -1 else -math.inf


def payback_days(cost_hours: float, saved_a_day: float) -> float | None:
    """Days until the saved hours are what was spent; None if they never are."""
    return cost_hours / saved_a_day if saved_a_day > 0 else None


def break_even_requests(cost_hours: float, days: float, hours_a_request: float, gain: float) -> float | None:
    """Requests a day from which on a gain pays back its cost within `days`; None for no gain."""
    saved_a_request = saved_hours_a_day(hours_a_request, gain)
    return cost_hours / (days * saved_a_request) if saved_a_request > 0 else None
