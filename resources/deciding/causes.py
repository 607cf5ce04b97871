"""Which causes of a retraining hold now, each in one sentence, with the window that it is decided once for.

    for cause in causes(seen, settings): cause.kind, cause.text, cause.window
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from resources.deciding.evidence import Evidence
from resources.deciding.requests import REQUEST, Request, cause_text
from resources.deciding.settings import CAUSES, Cause, DecideSettings

OF_ANSWERS = ("bad_feedback", "quality", "refusals", "broken_answers", "errors")
"""Tests of the table `drift` about how good answers are."""
ACCEPTANCE = "acceptance"


@dataclass(frozen=True)
class Found:
    """A cause that holds."""

    kind: Cause
    text: str
    window: str
    """Identifies the cause, so that it is decided once."""
    request: Request | None = None
    """What a person asked for; None for a cause that the lake shows."""


def asked(requests: Iterable[Request]) -> list[Found]:
    """The causes that people named. They come before all that was noticed, whatever the recipe lists."""
    return [Found(REQUEST, cause_text(each), each.request_id, each) for each in requests]


def causes(seen: Evidence, settings: DecideSettings) -> list[Found]:
    """Every cause that holds, most telling first. Causes that the recipe does not list are left out."""
    every = (_base_revision(seen), _acceptance(seen), _feedback(seen), _schedule(seen), _new_logs(seen, settings), _drift(seen))
    found = {each.kind: each for each in chain.from_iterable(every)}
    return [found[kind] for kind in CAUSES if kind in found and kind in settings.causes]


def _base_revision(seen: Evidence) -> Iterator[Found]:
    if seen.base_now and seen.base_then and seen.base_now != seen.base_then:
        yield Found("base_revision", f"the base model changed: {seen.base_then[:12]} was trained from, "
                    f"{seen.base_now[:12]} is there now", seen.base_now)


def _acceptance(seen: Evidence) -> Iterator[Found]:
    going = [each for each in seen.episodes if each.test == ACCEPTANCE]
    if not going:
        return
    first = min(each.start for each in going)
    measured = ""
    if seen.tau_served and seen.tau_released:
        measured = (f": {seen.tau_served:.3f} tokens per forward pass in the last days, {seen.tau_released:.3f} in the "
                    "release's report")
    yield Found("acceptance", f"the served acceptance length fell below the release's own profile on {first}{measured}",
                f"{first}")


def _feedback(seen: Evidence) -> Iterator[Found]:
    going = [each for each in seen.episodes if each.test in OF_ANSWERS]
    if going:
        first = min(each.start for each in going)
        yield Found("feedback", f"answers are worse than in the release's reference window: {', '.join(map(str, going))}",
                    f"{first}")


def _schedule(seen: Evidence) -> Iterator[Found]:
    if seen.schedule_due:
        yield Found("schedule", f"automation.retrain.cron was due on {seen.schedule_due}", seen.schedule_due)


def _new_logs(seen: Evidence, settings: DecideSettings) -> Iterator[Found]:
    trained = seen.drafter or seen.model
    if trained is None or seen.newest_day is None:
        return
    new = max(0, seen.rows - trained.rows)
    if new >= settings.least_new_rows and new >= settings.least_new_share * trained.rows:
        yield Found("new_logs", f"{new:,} rows were logged since {trained.version} was trained on {trained.rows:,}; the newest "
                    f"day is {seen.newest_day}", f"{trained.version}/{seen.newest_day}")


def _drift(seen: Evidence) -> Iterator[Found]:
    going = [each for each in seen.episodes if each.test not in (ACCEPTANCE, *OF_ANSWERS)]
    if going:
        first = min(each.start for each in going)
        yield Found("drift", f"the traffic differs from the release's reference window: {', '.join(map(str, going))}",
                    f"{first}")
