"""Whether a release's drafter pays for its training.

    drafter_payback(lake, "math-tutor", release, decide_settings).says
                        # "the drafter cost 24 min of a device (speculator_dataset 4 min, speculator 20 min); it pays back
                        #  within 30 days from 1,240 requests a day on (there are 5,000 now); drafter, K = 3 pays up to about
                        #  12.0 requests at a time"

A request takes (tokens of an answer) / (tokens/s) seconds of each of the server's devices (`devices_per_server`), with and
without the drafter, as the evaluation measured both in a server (drafting.json of the release), at the concurrency of the
endpoint at which the drafter is fastest. What is not known is said with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from model_ops.drafting import DraftingChoice
from model_ops.jobs import duration
from resources.deciding.gather import traffic
from resources.deciding.settings import DecideSettings
from resources.lake import LakeLayout
from resources.launching import seconds_of_steps
from resources.manifests import Manifest, ManifestError, read_manifest
from resources.releases import ReleaseError, read_choice, read_release

PAYBACK_DAYS = 30.0
"""Days within which it has to pay back, where the recipe names none."""
STAGES = ("speculator_dataset", "speculator")


@dataclass(frozen=True)
class DrafterPayback:
    release: str
    says: str
    """The result in one sentence."""
    days: float = PAYBACK_DAYS
    stage_costs_s: dict[str, float] = field(default_factory=dict)
    """Seconds by stage."""
    saved_s: float | None = None
    """Device seconds that a request saves."""
    break_even_requests: float | None = None
    """Requests a day from which on the costs are saved within `days`; None if unknown or never."""
    requests_a_day: float | None = None
    """Requests a day now."""


def drafter_payback(
    lake: LakeLayout, workload: str, release: str, settings: DecideSettings | None = None, now: datetime | None = None
) -> DrafterPayback:
    """The payback of a release's drafter. settings: of the recipe; None: the defaults."""
    settings = settings or DecideSettings()
    home, days = lake.artefacts("release") / workload / release, settings.payback_days or PAYBACK_DAYS
    try:
        part = read_release(home).speculator
        drafter = read_manifest(lake.root / part.path) if part else None
    except (ReleaseError, ManifestError, OSError, ValueError) as error:
        return DrafterPayback(release, f"whether its drafter pays is unknown: {type(error).__name__} while reading it", days)
    if drafter is None:
        return DrafterPayback(release, "it has no drafter, so there is nothing to pay back", days)
    costs = dict(_costs(lake, drafter))
    choice = read_choice(home)
    try:
        known = traffic(lake, workload, settings, now or datetime.now(UTC))
    except Exception:  # delta-rs and DuckDB raise errors of their own for damaged tables
        known = {}
    tokens, requests = known.get("answer_tokens_a_request"), known.get("requests_a_day")
    saved, why = _saved_s(choice, tokens, settings.devices_per_server)
    devices_s = sum(costs.values()) * settings.devices
    missing = [name for name in STAGES if name not in costs]
    at_least = devices_s / (days * saved) if saved and saved > 0 and not missing else None
    says = _sentence(costs, missing, settings.devices, at_least, why, days, requests, choice)
    return DrafterPayback(release, says, days, costs, saved, at_least, requests)


def _costs(lake: LakeLayout, drafter: Manifest) -> Iterator[tuple[str, float]]:
    """Seconds of the drafter's own stages: of their steps in Dagster's history, else as their manifests have them."""
    stages = [(STAGES[1], drafter)]
    for item in drafter.inputs:
        if item.kind == "dataset" and item.name.endswith(f"/{STAGES[0]}"):
            try:
                stages.insert(0, (STAGES[0], read_manifest(lake.artefacts("dataset") / item.name / item.version)))
            except ManifestError:
                continue
    for name, manifest in stages:
        seconds = seconds_of_steps(lake, manifest.run_id).get(name) if manifest.run_id else None
        seconds = manifest.metrics.get("seconds") if seconds is None else seconds
        if isinstance(seconds, int | float):
            yield name, float(seconds)


def _saved_s(choice: DraftingChoice | None, tokens: float | None, devices: int) -> tuple[float | None, str]:
    """Device seconds that drafting saves of a request; None, and why it is unknown. devices: of the server."""
    curve = (
        [point for point in choice.curve if not choice.concurrencies or point.concurrency in choice.concurrencies]
        if choice
        else []
    )
    best = max((point for point in curve if point.method == "drafter"), key=lambda point: point.tokens_per_second, default=None)
    if best is None:
        return None, (
            "no server measured it with and without the drafter: name one in evaluation.server, and the next evaluation asks it"
        )
    plain = next((point for point in curve if point.method == "none" and point.concurrency == best.concurrency), None)
    if plain is None or not plain.tokens_per_second or not best.tokens_per_second:
        return None, f"the server was not measured without drafting at {best.concurrency} requests at a time"
    if not tokens:
        return None, "no answers with a number of tokens can be read from the logs"
    return devices * (tokens / plain.tokens_per_second - tokens / best.tokens_per_second), ""


def _sentence(
    costs: dict[str, float],
    missing: list[str],
    devices: int,
    at_least: float | None,
    why: str,
    days: float,
    requests: float | None,
    choice: DraftingChoice | None,
) -> str:
    each = ", ".join(f"{name} {duration(seconds)}" for name, seconds in costs.items())
    on = "a device" if devices == 1 else f"{devices} devices"
    said = f"the drafter cost {duration(sum(costs.values()))} of {on} ({each})" if costs else "what the drafter cost is unknown"
    if costs and missing:
        said += f" and the unknown time of {' and '.join(missing)}"
    logged = f" (there are {requests:,.0f} now)" if requests else ""
    if why:
        said += f"; from how many requests a day on it pays back is unknown: {why}"
    elif at_least is not None:
        said += f"; it pays back within {days:g} days from {at_least:,.0f} requests a day on{logged}"
    elif missing:
        said += f"; from how many requests a day on it pays back is unknown: no time of {' and '.join(missing)} is recorded"
    else:
        said += "; it saves no time at the endpoint's concurrency, so it never pays back"
    curves = choice.break_even if choice else ()
    ends = [f"{curve.label} {curve.says}" for curve in curves if curve.label.startswith("drafter")]
    if choice is not None and choice.drafting.method != "drafter":
        ends.append(
            f"the release drafts with {choice.drafting.label}"
            if choice.drafting.method != "none"
            else "the release does not draft"
        )
    return "; ".join([said, *ends])
