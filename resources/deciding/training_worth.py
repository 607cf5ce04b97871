"""What a further interval of a training costs and is worth, looked up when the training begins: the recipe's `early_end`.

    settings = looked_up(speculator_settings, lake, "speculator", facts)      # early_end: with all that is known

Keys that the recipe gives stay. Keys that nothing is known of stay empty: the training then goes to its end and says why.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from model_ops.training.early_end_settings import EarlyEndOfDrafter, EarlyEndSettings
from model_ops.training.settings import TrainingSettings
from resources.artefacts.registry import Registry
from resources.deciding.facts import RecipeFacts
from resources.deciding.gather import gather
from resources.deciding.schedule import days_between
from resources.lake import Lake
from resources.releasing.drafting_decision import read_choice

AnyTraining = TypeVar("AnyTraining", bound=TrainingSettings)
DAYS = 30.0
"""Days that a drafter serves, where neither a schedule nor `payback_days` says."""


def looked_up(settings: AnyTraining, lake: Lake, stage: str, facts: RecipeFacts, now: datetime | None = None) -> AnyTraining:
    """The settings of a training with `early_end` filled from the lake; the same where it is not enabled.

    stage: whose earlier versions say how many tokens a second it reads.
    """
    stop: EarlyEndSettings = getattr(settings, "early_end", None) or EarlyEndSettings()
    if not stop.enabled:
        return settings
    found: dict[str, Any] = {"trained_tokens_per_second": _tokens_per_second(lake, facts.workload, stage, settings)}
    if isinstance(stop, EarlyEndOfDrafter):
        found |= _decoding(lake, facts, continues=getattr(settings, "continue_from", None) is not None,
                           now=now or datetime.now(UTC))
    filled = {name: value for name, value in found.items() if getattr(stop, name) is None and value is not None}
    return settings.model_copy(update={"early_end": stop.model_copy(update=filled)})


def _tokens_per_second(lake: Lake, workload: str, stage: str, settings: TrainingSettings) -> float | None:
    """Of the last training of a stage; of a drafter, the last one of the same architecture."""
    kind = getattr(settings, "architecture", None)
    versions = sorted(Registry(lake, workload).versions("model", stage), key=lambda each: each.created_at, reverse=True)
    for made in versions:
        tokens, seconds = made.metrics.get("tokens"), made.metrics.get("seconds")
        if made.config.get("architecture") == kind and isinstance(tokens, int | float) and isinstance(seconds, int | float) \
                and tokens > 0 and seconds > 0:
            return tokens / seconds
    return None


def _decoding(lake: Lake, facts: RecipeFacts, continues: bool, now: datetime) -> dict[str, float | None]:
    """Device hours of a day's answers as the release drafts now, and for how long a new drafter serves.

    decode_hours_at_tau is left out for a drafter that continues the last one: the training measures that one on its own
    held-out answers."""
    settings = facts.decide
    days = days_between(facts.cron, settings.timezone, now) if facts.cron else settings.payback_days or DAYS
    seen, _ = gather(lake, facts, settings, now)
    choice = read_choice(lake.artefacts("release") / facts.workload / seen.release) if seen.release else None
    if choice is not None and choice.drafting.method != "drafter":
        return {"serves_days": days}  # nothing says what a better drafter than one that is not served saves
    speed = settings.tokens_per_second or max(
        (point.tokens_per_second / settings.devices_per_server for point in (choice.curve if choice else ())
         if point.label == choice.drafting.label and point.concurrency in choice.concurrencies),
        default=seen.tokens_per_second)
    hours = replace(seen, tokens_per_second=speed).decode_hours_a_day
    return {"serves_days": days, "decode_hours_per_day": hours, "decode_hours_at_tau": None if continues else seen.drafter_tau}
