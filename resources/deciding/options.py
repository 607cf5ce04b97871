"""Everything that could be done about a cause, with predicted cost and gain, and which of it is chosen.

    options, chosen, why = weigh(cause, seen, predictions, facts, decisions)
    saved = saved_hours_a_day(decode_hours_a_day, gain=0.08)      # what a faster drafter saves
    payback_days(cost_hours, saved)                               # None: never
    break_even_requests(cost_hours, days, hours_a_request, gain)
    ratio = ratio_of([(predicted, real), ...])          # CorrectionRatio(value=1.2, low=0.9, n=4): corrects the next prediction
    gain_ratio(recent(decisions, now), "drafter_new")

Chosen is the cheapest option whose gain, by its lower bound, is worth its cost: a drafter has to save its device hours within
`payback_days`; a model has to learn at least `least_loss_gain`. What preference training gains is not predicted: it is an
option only where feedback falls and the recipe says so. A new base revision, the schedule and a request are a person's
own wish: they get a full run, or what the request names, whatever it gains.

The time to decode is inversely proportional to the speed-up S, and S = tau / (1 + K c) with the same number of drafted tokens K
and cost of a draft c before and after. So a relative rise g of the acceptance length tau saves H (1 - S_old / S_new)
= H g / (1 + g) of the H device hours that a day's decoding takes.

Few outcomes say little: OWN pretended outcomes, at which the prediction was right, are averaged in. For the lower bound, an
outcome that was better than its prediction counts as one that was right: good outcomes make no bound smaller, nor larger.
Outcomes of the last DAYS days count, so that an action which failed once is tried again some time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from model_ops.jobs import duration
from model_ops.training import upper_quantile
from resources.deciding.actions import SPELLED
from resources.deciding.causes import BAD_FEEDBACK, RetrainingCause
from resources.deciding.decisions import Action, Decision, Option
from resources.deciding.evidence import Estimate, Evidence, RecipeFacts
from resources.deciding.settings import DecideSettings

ACTIONS: tuple[Action, ...] = ("drafter_continued", "drafter_new", "sft_continued", "preference", "full")
DRAFTERS = ("drafter_continued", "drafter_new")
WISHES = ("base_revision", "schedule", "request")


@dataclass(frozen=True)
class ActionForecast:
    """Of one action, before corrections."""

    stages: Mapping[str, float] | None
    """Seconds by stage; None if the cost of a stage in `unknown` is missing; `known` has the others."""
    gain: Estimate | None
    unknown: tuple[str, ...] = ()


def weigh(
    cause: RetrainingCause,
    seen: Evidence,
    predicted: Mapping[Action, ActionForecast],
    facts: RecipeFacts,
    decisions: Sequence[Decision],
) -> tuple[list[Option], Action, str]:
    """Options by cost, the chosen action, and why in one sentence."""
    settings = facts.decide
    nothing = Option("nothing", 0.0, 0.0 if settings.price_per_device_hour is not None else None, 0.0, 0.0)
    found = [
        _option(action, cause, seen, predicted.get(action, ActionForecast(None, None)), facts, decisions) for action in ACTIONS
    ]
    found.sort(key=lambda each: each.predicted_cost_s if each.predicted_cost_s is not None else float("inf"))
    chosen = next((each for each in found if not each.why_not), None)
    if chosen is None:
        return [nothing, *found], "nothing", _why_nothing(cause, seen, settings, found)
    others = [
        each if each is chosen or each.why_not else replace(each, why_not=f"{SPELLED[chosen.action]} costs less and is enough")
        for each in found
    ]
    nothing = replace(
        nothing,
        why_not=f"{cause.request.by} asked for {SPELLED[chosen.action]}"
        if cause.request
        else f"{SPELLED[chosen.action]} is worth its cost",
    )
    return [nothing, *others], chosen.action, _why(cause, chosen)


def _option(
    action: Action,
    cause: RetrainingCause,
    seen: Evidence,
    predicted: ActionForecast,
    facts: RecipeFacts,
    decisions: Sequence[Decision],
) -> Option:
    settings = facts.decide
    cost_by, gain_by = cost_ratio(decisions, action), gain_ratio(decisions, action)
    seconds = sum(predicted.stages.values()) * cost_by.value if predicted.stages is not None else None
    gain = predicted.gain.times(gain_by.value, gain_by.low) if predicted.gain is not None and gain_by.n else predicted.gain
    hours = seconds * settings.devices / 3600 if seconds is not None else None
    option = Option(
        action,
        seconds,
        _money(hours, settings),
        gain.value if gain else None,
        gain.low if gain else None,
        gain_says=gain.says if gain else "",
        stage_costs_s=dict(predicted.stages or {}),
        corrected_cost=cost_by.value,
        corrected_gain=gain_by.value,
    )
    if action in DRAFTERS and gain is not None and hours is not None:
        option = replace(option, **_payback(hours, gain, seen, settings))
    return replace(option, why_not=_why_not(action, cause, seen, option, facts, predicted.unknown))


def _payback(hours: float, gain: Estimate, seen: Evidence, settings: DecideSettings) -> dict[str, float | None]:
    a_day = seen.decode_hours_a_day
    if a_day is None or not seen.requests_a_day:
        return {}
    days = settings.payback_days or 30.0
    return {
        "payback_days": payback_days(hours, saved_hours_a_day(a_day, gain.low)),
        "break_even_requests": break_even_requests(hours, days, a_day / seen.requests_a_day, gain.low),
    }


def _why_not(
    action: Action, cause: RetrainingCause, seen: Evidence, option: Option, facts: RecipeFacts, unknown: Sequence[str] = ()
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
        return "" if action == "full" else f"it would leave out what a {_wish(cause)} is for"
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
    if option.gain_lower is None:
        return "nothing says what it would gain: no learning curve and no served acceptance"
    return _too_little(action, seen, option, settings)


def _why_no_preference(cause: RetrainingCause, seen: Evidence, settings: DecideSettings) -> str:
    """Nothing predicts what preference training gains, so the recipe has to say that feedback is enough of a cause."""
    if cause.kind != "feedback" or not any(each.test == BAD_FEEDBACK for each in seen.episodes):
        return "preferences are learnt where people like the answers less"
    if not settings.preference_on_feedback:
        return "nothing predicts what it would gain, and automation.decide.preference_on_feedback is off"
    return ""


def _too_little(action: Action, seen: Evidence, option: Option, settings: DecideSettings) -> str:
    low, value = option.gain_lower or 0.0, option.predicted_gain or 0.0
    if action not in DRAFTERS:
        if low >= settings.least_loss_gain and low > 0:
            return ""
        wanted = f"less than {settings.least_loss_gain:g} (automation.decide.least_loss_gain)" if low > 0 else "not above 0"
        return f"its held-out loss would fall by {value:z.4f} nats a token; the lower bound of that, {low:z.4f}, is {wanted}"
    if low <= 0:
        return f"its acceptance length would rise by {value:z.2%}; the lower bound of that, {low:z.2%}, is not above 0"
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
        return (
            f"at the lower bound of its gain it pays back {said}, and {settings.payback_days:g} days are asked for; it "
            f"would from {option.break_even_requests or 0:z,.0f} requests a day on"
        )
    return ""


def _why(cause: RetrainingCause, chosen: Option) -> str:
    what, seconds = SPELLED[chosen.action], chosen.predicted_cost_s
    cost = f" costs about {duration(seconds)}" if seconds is not None else ", whose cost is unknown,"
    money = f" ({chosen.predicted_money:z,.2f})" if chosen.predicted_money is not None else ""
    if cause.kind in WISHES:
        return f"{what}{cost}{money}: {cause.request.by if cause.request else f'a {_wish(cause)}'} asks for it"
    if chosen.action == "preference":
        return (
            f"{what}{cost}{money}: people like the answers less, and automation.decide.preference_on_feedback is on; nothing "
            "predicts its gain, the gates measure it"
        )
    if chosen.action in DRAFTERS:
        back = f" and pays back in {duration(chosen.payback_days * 86_400)}" if chosen.payback_days is not None else ""
        return (
            f"{what}{cost}{money}{back}: the acceptance length rises by {chosen.predicted_gain or 0:z.1%}, at least "
            f"{chosen.gain_lower or 0:z.1%}"
        )
    return (
        f"{what}{cost}{money}: the held-out loss falls by {chosen.predicted_gain or 0:z.4f} nats a token, at least "
        f"{chosen.gain_lower or 0:z.4f}"
    )


def _why_nothing(cause: RetrainingCause, seen: Evidence, settings: DecideSettings, options: Sequence[Option]) -> str:
    if cause.request is not None:
        wanted = next(each for each in options if each.action == cause.request.action)
        return f"nothing, although {cause.request.by} asks for {SPELLED[wanted.action]}: {wanted.why_not}"
    if seen.missing:
        return (
            f"nothing: {', '.join(seen.missing)} was never made; the first run is a person's (millrace run RECIPE), and "
            "what follows is measured by it"
        )
    if cause.kind == "drift" and not settings.drift_trains:
        return (
            f"nothing: {options[0].why_not}; the next run's evaluation takes {settings.drift_widens:g} times as many rows "
            "and prompts"
        )
    nearest = options[0]
    return f"nothing pays back; of what costs least, {SPELLED[nearest.action]}: {nearest.why_not}"


def _money(hours: float | None, settings: DecideSettings) -> float | None:
    price = settings.price_per_device_hour
    return hours * price if hours is not None and price is not None else None


def _wish(cause: RetrainingCause) -> str:
    return "new base revision" if cause.kind == "base_revision" else "schedule"


def saved_hours_a_day(decode_hours_a_day: float, gain: float) -> float:
    """Device hours a day that a relative gain of the acceptance length saves; negative for a loss."""
    return decode_hours_a_day * gain / (1 + gain) if gain > -1 else -math.inf


def payback_days(cost_hours: float, saved_a_day: float) -> float | None:
    """Days until the saved hours are what was spent; None if they never are."""
    return cost_hours / saved_a_day if saved_a_day > 0 else None


def break_even_requests(cost_hours: float, days: float, hours_a_request: float, gain: float) -> float | None:
    """Requests a day from which on a gain pays back its cost within `days`; None for no gain."""
    saved_a_request = saved_hours_a_day(hours_a_request, gain)
    return cost_hours / (days * saved_a_request) if saved_a_request > 0 else None


DAYS = 60
OWN = 2
WIDEST = (0.0, 10.0)
"""A single ratio beyond these counts as this: a prediction near 0 has no ratio."""


@dataclass(frozen=True)
class CorrectionRatio:
    """real / predicted."""

    value: float = 1.0
    low: float = 1.0
    """Lower end of the one-sided 95 % interval (Student's t) of the mean ratio, between 0 and 1; ratios above 1 count as 1."""
    n: int = 0
    """Number of outcomes behind it."""


def corrections(decisions: Sequence[Decision], now: datetime) -> list[str]:
    """Sentences: by which ratio predictions of each action were off, as far as there are outcomes."""
    told, counted = [], recent(decisions, now)
    for action, spelled in SPELLED.items():
        cost, gain = cost_ratio(counted, action), gain_ratio(counted, action)
        if cost.n or gain.n:
            told.append(
                f"{spelled}: costs are predicted times {cost.value:z.2f} ({cost.n} outcomes), gains times "
                f"{gain.value:z.2f} ({gain.n} outcomes)"
            )
    return told


def recent(decisions: Sequence[Decision], now: datetime) -> list[Decision]:
    """Those whose outcomes still count."""
    return [each for each in decisions if each.ts > now - timedelta(DAYS)]


def ratio_of(outcomes: Iterable[tuple[float, float]]) -> CorrectionRatio:
    """The mean of the outcomes' ratios. Predictions of 0 or less have none, and are left out; a loss counts as a ratio of 0."""
    least, most = WIDEST
    found = [min(most, max(least, real / predicted)) for predicted, real in outcomes if predicted > 0]
    if not found:
        return CorrectionRatio()
    every = [*found, *[1.0] * OWN]
    return CorrectionRatio(sum(every) / len(every), max(0.0, _lower_end([min(1.0, each) for each in every])), len(found))


def _lower_end(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((each - mean) ** 2 for each in values) / (len(values) - 1))
    return mean - upper_quantile(len(values) - 1) * spread / math.sqrt(len(values))


def cost_ratio(decisions: Sequence[Decision], action: Action) -> CorrectionRatio:
    """Of the costs of settled decisions with this action."""
    return ratio_of(
        (option.predicted_cost_s / _given(option.corrected_cost), each.cost_s)
        for each, option in _settled(decisions, action)
        if option.predicted_cost_s and each.cost_s and each.outcome in ("released", "waiting", "no_better")
    )


def gain_ratio(decisions: Sequence[Decision], action: Action) -> CorrectionRatio:
    """Of their gains."""
    return ratio_of(
        (option.predicted_gain / _given(option.corrected_gain), each.gain)
        for each, option in _settled(decisions, action)
        if option.predicted_gain and each.gain is not None
    )


def _settled(decisions: Sequence[Decision], action: Action) -> Iterator[tuple[Decision, Option]]:
    for each in decisions:
        if each.action == action and each.chosen is not None:
            yield each, each.chosen


def _given(ratio: float) -> float:
    """The ratio that a prediction was corrected by: outcomes are compared with what was predicted before it."""
    return ratio or 1.0
