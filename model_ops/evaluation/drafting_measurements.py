"""Measurements of drafting in the evaluation's report, as a release's choice reads them. Imports no torch."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from model_ops.drafting import LOOKUPS, Drafting, MeasuredDrafting, Rate, ReplayResult
from model_ops.evaluation.measurement import AS_LOGGED, CHAMPION, REFERENCE


def measured_draftings(forms: Mapping[str, Mapping[str, Any]]) -> list[MeasuredDrafting]:
    """The served model with each drafting, sampled as the traffic is, from the forms of speed.json's `in_server`."""
    return [
        MeasuredDrafting(
            Drafting.model_validate(form["drafting"]),
            {int(concurrency): Rate(rate["median"], rate["p99_s"]) for concurrency, rate in form["as_logged"]["rates"].items()},
            form["as_logged"]["tau"],
        )
        for name, form in forms.items()
        if name != REFERENCE
    ]


def replayed_draftings(report: Mapping[str, Any], drafter: str | None) -> list[ReplayResult]:
    """Acceptance lengths by K, without a server, from the content of a report.json: those over test prompts, sampled as the
    traffic is, which every page shows.

    Lookups have the K that was best on validation answers. What a drafter accepts at the first K positions a round does not
    depend on whether it drafts more.
    """
    results = [
        ReplayResult(method=name, num_speculative_tokens=each["num_speculative_tokens"], tau=each["tau"])
        for name in LOOKUPS
        if (each := _as_logged(report, name)) is not None
    ]
    summary = _as_logged(report, drafter)
    if summary is not None:
        results += [
            ReplayResult(method="drafter", num_speculative_tokens=place + 1, tau=1 + accepted)
            for place, accepted in enumerate(accumulate(summary["accepted_by_position"]))
        ]
    return results


def drafter_low(report: Mapping[str, Any], drafter: str | None) -> float | None:
    """The lower end of the 95 % interval of a drafter's acceptance length; None if it was not measured."""
    summary = _as_logged(report, drafter)
    return None if summary is None else summary["tau_low"]


def drafter_gain_low(report: Mapping[str, Any], drafter: str | None) -> float | None:
    """The lower end of the drafter's relative gain over the better lookup, paired over prompts; None if it was not measured."""
    gains = [
        each
        for each in report["measurements"]
        if each["what"] == "acceptance_gain" and each["of"] == drafter and each["against"] != CHAMPION
    ]
    logged = next((each for each in gains if each["sampling"] == AS_LOGGED), gains[0] if gains else None)
    return None if logged is None else logged["low"]


def _as_logged(report: Mapping[str, Any], drafter: str | None) -> Mapping[str, Any] | None:
    """The summary of a drafter, sampled as the traffic is, else of the first way of sampling."""
    of_it = [each for each in report.get("acceptance", []) if each["drafter"] == drafter]
    return next((each for each in of_it if each["sampling"] == AS_LOGGED), of_it[0] if of_it else None)
