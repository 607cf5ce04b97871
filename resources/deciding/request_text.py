"""Sentences about a request for a retraining: recorded, previewed, withdrawn."""

from __future__ import annotations

from resources.deciding.decision import Decision
from resources.deciding.requests import Request
from resources.deciding.settings import DecideSettings


def asked_sentence(request: Request, is_new: bool, settings: DecideSettings | None) -> str:
    """Sentences about a kept request. settings: of the recipe; None where the recipe is not known."""
    if not is_new:
        return (f"{request.by} asked for the same at {request.ts:%Y-%m-%d %H:%M} UTC (request {request.request_id}), and it is "
                "not decided yet: nothing was added")
    return f"request {request.request_id} is kept: {_next(settings)}"


def preview_sentences(decision: Decision, hold: str) -> str:
    """What a dry run says. hold: what would keep it from being decided now."""
    waits = f". It would wait: {hold}" if hold else ""
    return f"dry run, nothing is kept or started. The decision would be: {decision.why}{waits}"


def withdrawn_sentence(request: Request) -> str:
    """What is said of a request that was taken back."""
    return f"request {request.request_id} is withdrawn, and nothing will be started for it"


def _next(settings: DecideSettings | None) -> str:
    if settings is None:
        return "the sensor `decide` decides it at its next tick, if it is on and the daemon runs"
    if settings.dry_run:
        return ("the recipe says automation.decide.dry_run, so the sensor `decide` only writes what it would do; the request "
                "waits until that is false")
    if not settings.enabled:
        return ("it waits until the sensor `decide` is on: switch it on in the Dagster UI (Automation), or with "
                "automation.decide.enabled in the recipe")
    return "the sensor `decide` decides it at its next tick, while the daemon runs"
