"""Gathers the evidence of a workload from its lake: rows, drift, serving metrics, trained versions and their learning curves.

    seen, predicted = gather(lake, facts, now)
    points = points_of(directory / "metrics.jsonl", ("validation_expected_tau", "expected_tau"))
    found = rise_a_doubling(points)            # model_ops.training.learning_curve: Rise(value=0.12, error=0.02, n=8)

Only the commit logs, manifests, the release's rows of drift and a few columns of the last days are read, so it takes well under
a second for a usual lake. A learning curve comes from one training's own metrics, since a workload has few versions at first:
the last three quarters of its measurements, in BINS parts if there are at least two for each. It is an extrapolation:
predictions made from it are compared with what came of them, and corrected (`ratio_of` in options.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from model_ops.training import Point, Rise, rise_a_doubling
from resources.artefacts import Registry, current_manifests
from resources.deciding.actions import work_of
from resources.deciding.base_versions import base_digests
from resources.deciding.causes import due
from resources.deciding.decisions import Action
from resources.deciding.evidence import Episode, Evidence, RecipeFacts, TrainingRecord, episodes
from resources.deciding.options import ACTIONS, DRAFTERS, ActionForecast
from resources.deciding.predictions import PastVersion, drafter_gain, model_gain, seconds_of, unknown_stages
from resources.deciding.settings import DecideSettings
from resources.endpoints import Endpoint, EndpointError, EndpointLogError, approvals_of
from resources.lake import LakeLayout, Tables, attach_slice, rows, workbench
from resources.launching import seconds_of_steps
from resources.manifests import Manifest, ManifestError, read_manifest
from resources.reading import CHATS_SOURCE
from resources.releases import ReleaseError, read_choice, read_release
from resources.signing import KeyProblemError
from resources.stages import STAGES

SERVED_DAYS = 3
"""Days of serving metrics that count as now."""
TRAFFIC_DAYS = 7
ARTEFACTS = {found.name: found.artefact_name for found in STAGES}


def gather(lake: LakeLayout, facts: RecipeFacts, now: datetime | None = None) -> tuple[Evidence, dict[Action, ActionForecast]]:
    """The evidence, and what each action would cost and gain."""
    settings = facts.decide
    now = now or datetime.now(UTC)
    manifests = current_manifests(lake, facts.workload)
    tables = Tables(lake)
    by_day, traffic_days = _rows_by_day(tables, facts.workload, now)
    release, candidate, report = _endpoint(lake, facts.workload, manifests)
    served = _served(tables, facts, release, now)
    then, base_now = base_digests(lake, manifests.get("base_model"), facts.base_directory)
    models = [*facts.policy.stages, *(["speculator"] if facts.policy.speculator else [])]
    seen = Evidence(
        facts.workload,
        release,
        sum(by_day.values()),
        max(by_day, default=None),
        by_day,
        drafter=_trained(lake, manifests.get("speculator")),
        model=_trained(lake, manifests.get("sft_model") or manifests.get(facts.policy.served)),
        episodes=tuple(_episodes(tables, facts.workload, release)),
        **_tau(report, facts),
        **served,
        **_traffic(tables, facts.workload, traffic_days, settings, now),
        drafter_tau=_number(manifests.get("speculator"), "validation_expected_tau"),
        base_then=then,
        base_now=base_now,
        drafting=_drafting(lake, facts.workload, release),
        schedule_due=due(facts.cron, settings.timezone, now) if facts.cron else "",
        candidate=candidate,
        missing=tuple(name for name in models if name not in manifests),
        devices=settings.devices,
    )
    seen = _with_speed(seen, settings, report, served)
    return seen, _predicted(lake, facts, seen, manifests)


def traffic(lake: LakeLayout, workload: str, settings: DecideSettings, now: datetime) -> dict[str, Any]:
    """requests_a_day and answer_tokens_a_request of the last days that are over, as far as they are known."""
    tables = Tables(lake)
    return _traffic(tables, workload, _rows_by_day(tables, workload, now)[1], settings, now)


def _rows_by_day(tables: Tables, workload: str, now: datetime) -> tuple[dict[date, int], set[date]]:
    """Rows that cleaning kept, and the days with traffic. A day in the future is left out: a clock is wrong."""
    with workbench() as connection:
        attach_slice(connection, tables, "cleaned_interactions", workload)
        found = rows(connection, "deciding/clean_rows_by_day", chats=CHATS_SOURCE).to_pylist()
    past = [row for row in found if row["dt"] <= now.date()]
    return {row["dt"]: row["rows"] for row in past}, {row["dt"] for row in past if row["traffic"]}


def _endpoint(lake: LakeLayout, workload: str, manifests: Mapping[str, Manifest]) -> tuple[str, str, Manifest | None]:
    """Champion, a candidate that waits for a person and whose gates hold, and the champion's evaluation report."""
    champion = candidate = ""
    try:
        aliases = Endpoint(lake, workload).read()
        champion = aliases.champion or ""
        home = lake.artefacts("release") / workload
        named = home / aliases.candidate if aliases.candidate else None
        if named is not None and read_release(named).passed and _waits(lake, named):
            candidate = named.name
        made = read_manifest(home / champion) if champion else None
        part = next((item for item in made.inputs if item.kind == "dataset"), None) if made else None
        report = read_manifest(lake.artefacts("dataset") / part.name / part.version) if part else None
    except (EndpointError, EndpointLogError, ReleaseError, ManifestError, OSError, ValueError):
        report = None
    return champion, candidate, report or manifests.get("evaluation_report")


def _waits(lake: LakeLayout, candidate: Path) -> bool:
    """Whether a person still has to decide: no approval yet, or one of two. Also where the keys of approvals cannot
    be read: a run would replace the candidate."""
    try:
        approvals = approvals_of(lake, candidate)
    except KeyProblemError:
        return True
    return approvals.missing > 0 and not approvals.withdrawn


def _trained(lake: LakeLayout, made: Manifest | None) -> TrainingRecord | None:
    """What a model was trained on, by the grouping pass that its datasets come from."""
    if made is None:
        return None
    waiting, seen = [made], set()
    while waiting:
        found = waiting.pop(0)
        if found.name.endswith("/curated_interactions"):
            return TrainingRecord(made.version, int(found.metrics.get("read") or 0), made.created_at.isoformat())
        for item in found.inputs:
            if item.kind == "dataset" and (item.name, item.version) not in seen:
                seen.add((item.name, item.version))
                try:
                    waiting.append(read_manifest(lake.artefacts("dataset") / item.name / item.version))
                except ManifestError:
                    continue
    return None


def _episodes(tables: Tables, workload: str, release: str) -> list[Episode]:
    """All rows of the release count: an episode is known by its first alarm, however long ago that was."""
    with workbench() as connection:
        attach_slice(connection, tables, "drift", workload)
        return episodes(rows(connection, "deciding/drift_rows", release=release).to_pylist())


def _served(tables: Tables, facts: RecipeFacts, release: str, now: datetime) -> dict[str, Any]:
    """tau as served in the last days, with the error over days, and the speed that servers reported."""
    with workbench() as connection:
        attach_slice(connection, tables, "serving_metrics", facts.workload)
        found = rows(connection, "deciding/served_days", release=release, since=now - timedelta(SERVED_DAYS + 1)).to_pylist()
    drafts = sum(row["drafts"] for row in found)
    if not drafts:
        return {}
    tau = 1 + sum(row["accepted_tokens"] for row in found) / drafts
    days = [1 + row["accepted_tokens"] / row["drafts"] for row in found]
    error = (sum((each - tau) ** 2 for each in days) / (len(days) - 1) / len(days)) ** 0.5 if len(days) > 1 else None
    speeds = [row["tokens_per_second"] for row in found if row["tokens_per_second"]]
    return {
        "tau_served": tau,
        "tau_served_error": error,
        "tau_served_days": len(found),
        "served_drafts": drafts,
        "tokens_per_second": sum(speeds) / len(speeds) if speeds else None,
    }


def _tau(report: Manifest | None, facts: RecipeFacts) -> dict[str, Any]:
    """Acceptance length of the release's drafter in its evaluation report, sampled as logged, else at the first temperature."""
    metrics = report.metrics if report else {}
    drafter = f"tau_{facts.architecture}"
    fixed = sorted(name for name in metrics if name.startswith(f"{drafter}_t") and not name.endswith(("_low", "_high")))
    name = next((each for each in (f"{drafter}_as_logged", *fixed) if isinstance(metrics.get(each), int | float)), None)
    return {"tau_released": float(metrics[name]), "tau_released_low": metrics.get(f"{name}_low")} if name else {}


def _traffic(tables: Tables, workload: str, traffic_days: Set[date], settings: DecideSettings, now: datetime) -> dict[str, Any]:
    """Requests a day and tokens of an answer over the TRAFFIC_DAYS up to the newest day of the logs that is over; where none is
    over, up to the newest. A day in between without rows is one without requests."""
    newest = max((day for day in traffic_days if day < now.date()), default=max(traffic_days, default=None))
    if newest is None:
        return {"requests_a_day": settings.requests_per_day}
    first = max(min(traffic_days), newest - timedelta(TRAFFIC_DAYS - 1))
    days = [first + timedelta(place) for place in range((newest - first).days + 1)]
    with workbench() as connection:
        attach_slice(connection, tables, "interactions", workload, days)
        [found] = rows(connection, "deciding/daily_tokens", chats=CHATS_SOURCE).to_pylist()
    if not found["requests"]:
        return {"requests_a_day": settings.requests_per_day}
    return {
        "requests_a_day": settings.requests_per_day or found["requests"] / len(days),
        "answer_tokens_a_request": found["answer_tokens"] / found["requests"] or None,
    }


def _with_speed(seen: Evidence, settings: DecideSettings, report: Manifest | None, served: Mapping[str, Any]) -> Evidence:
    """With tokens/s of one device."""
    measured = report.metrics if report else {}
    in_server = [value for name, value in measured.items() if "tokens_per_second" in name and "server" in name]
    own = [value for name, value in measured.items() if name.startswith("tokens_per_second_none")]
    speeds = [value for value in in_server or own if isinstance(value, int | float) and value > 0]
    of_server = served.get("tokens_per_second") or (max(speeds) if speeds and in_server else None)
    speed = settings.tokens_per_second or (of_server / settings.devices_per_server if of_server else max(speeds, default=None))
    return replace(seen, tokens_per_second=speed)


def _predicted(
    lake: LakeLayout, facts: RecipeFacts, seen: Evidence, manifests: Mapping[str, Manifest]
) -> dict[Action, ActionForecast]:
    settings = facts.decide
    registry = Registry(lake, facts.workload)
    made = {name: _made(lake, registry, name, seen, manifests) for name in ARTEFACTS}
    rises = {
        name: _rise(registry, manifests.get(name), names)
        for name, names in (
            ("speculator", ("validation_expected_tau", "expected_tau")),
            ("sft_model", ("validation_loss", "loss")),
        )
    }
    found: dict[Action, ActionForecast] = {}
    new_base = seen.base_now != seen.base_then
    for action in ACTIONS:
        if action == "sft_continued" and "sft_model" not in facts.policy.stages:
            continue
        if action == "preference" and "preference_model" not in facts.policy.stages:
            continue
        if action in DRAFTERS and not facts.policy.speculator:
            continue
        new = seen.new_rows_of_drafter if action in DRAFTERS else seen.new_rows_of_model
        work = work_of(action, facts, widened=bool(seen.episodes))
        work = replace(work, overrides={**work.overrides, "base_model": {"again": True}}) if new_base else work
        new_share = new / seen.rows if seen.rows else 0.0
        stages = seconds_of(work, made, facts, seen.rows, new_share)
        gain = (
            drafter_gain(seen, rises["speculator"], action == "drafter_continued", settings.drafter_step_share)
            if action in DRAFTERS
            else model_gain(seen, rises["sft_model"])
            if action != "preference"
            else None
        )
        found[action] = ActionForecast(stages, gain, unknown_stages(work, made))
    return found


def _made(
    lake: LakeLayout, registry: Registry, name: str, seen: Evidence, manifests: Mapping[str, Manifest]
) -> list[PastVersion]:
    """The newest versions of a stage with the seconds of their step. Not finished ones have no manifest and are not there."""
    manifest = manifests.get(ARTEFACTS[name])
    if manifest is None:
        return []
    versions: Sequence[Manifest] = [manifest]
    if name in ("speculator", "speculator_dataset", "sft_model"):
        versions = sorted(registry.versions(manifest.kind, ARTEFACTS[name]), key=lambda each: each.created_at, reverse=True)[:8]
    found = []
    for each in versions:
        step = seconds_of_steps(lake, each.run_id).get(name) if each.run_id else None
        seconds = step if step is not None else _number(each, "seconds")
        if seconds is not None:
            learnt = _trained(lake, each)
            found.append(
                PastVersion(
                    seconds,
                    learnt.rows if learnt else 0,
                    each.config,
                    each.metrics,
                    any(item.name == each.name for item in each.inputs),
                )
            )
    return found


def _rise(registry: Registry, manifest: Manifest | None, names: Sequence[str]) -> Rise | None:
    return rise_a_doubling(points_of(registry.directory(manifest) / "metrics.jsonl", names)) if manifest else None


def _number(manifest: Manifest | None, name: str) -> float | None:
    found = manifest.metrics.get(name) if manifest else None
    return float(found) if isinstance(found, int | float) else None


def _drafting(lake: LakeLayout, workload: str, release: str) -> tuple[str, ...]:
    """A sentence for each measured drafting of the release: up to which concurrency it pays."""
    choice = read_choice(lake.artefacts("release") / workload / release) if release else None
    return tuple(f"{each.label} {each.says}" for each in choice.break_even) if choice else ()


BINS = 8
SKIPPED = 0.25
"""Share of the measurements at the beginning that are left out: what is learnt there is no sign of what more rows bring."""
LEAST = 3
"""Points that a slope with an error needs."""


def points_of(metrics: Path, names: Sequence[str]) -> list[Point]:
    """Points of the first measurement that has at least three. A file that is missing or damaged gives none."""
    try:
        lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError):
        return []
    tokens, so_far = [], 0.0
    for line in lines:
        so_far += line.get("tokens") or 0
        tokens.append(so_far)
    for name in names:
        points = [
            (at, float(line[name]))
            for at, line in zip(tokens, lines, strict=True)
            if isinstance(line.get(name), int | float) and math.isfinite(line[name]) and at > 0
        ]
        points = points[min(int(len(points) * SKIPPED), max(0, len(points) - LEAST)) :]
        if len(points) >= LEAST:
            return _binned(points)
    return []


def _binned(points: Sequence[Point]) -> list[Point]:
    """Means of each part, of the measurements and of the logarithms of the tokens: a line in the logarithm stays one."""
    if len(points) < 2 * BINS:
        return list(points)
    size = len(points) / BINS
    parts = [points[round(place * size) : round((place + 1) * size)] for place in range(BINS)]
    return [(math.exp(sum(math.log(at) for at, _ in part) / len(part)), sum(y for _, y in part) / len(part)) for part in parts]
