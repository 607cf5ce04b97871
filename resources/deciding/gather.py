"""Gathers the evidence of a workload from its lake, and what each action costs: `seen, costs = gather(lake, facts, now)`.

Only the commit logs, manifests, the release's rows of drift and a few columns of the last days are read, so it takes well under
a second for a usual lake."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from resources.artefacts import Registry, current_manifests
from resources.deciding.causes import due
from resources.deciding.costs import DRAFTERS, ActionCost, costs_of
from resources.deciding.decisions import Action, Decision, Outcome
from resources.deciding.evidence import DecideSettings, Episode, Evidence, RecipeFacts, TrainingRecord, episodes
from resources.endpoints import Endpoint, EndpointError, EndpointLogError, approvals_of, standing
from resources.lake import LakeLayout, Tables, attach_slice, rows, workbench
from resources.manifests import Kind, Manifest, ManifestError, read_manifest
from resources.reading import CHATS_SOURCE
from resources.releases import ReleaseError, ReleaseRef, read_choice, read_release
from resources.signing import KeyProblemError

SERVED_DAYS = 3
"""Days of serving metrics that count as now."""
TRAFFIC_DAYS = 7


def gather(lake: LakeLayout, facts: RecipeFacts, now: datetime | None = None) -> tuple[Evidence, dict[Action, ActionCost]]:
    """The evidence, and what each action would cost."""
    settings = facts.decide
    now = now or datetime.now(UTC)
    manifests = current_manifests(lake, facts.workload)
    tables = Tables(lake)
    with workbench() as connection:
        attach_slice(connection, tables, "cleaned_interactions", facts.workload)
        days = rows(connection, "deciding/clean_rows_by_day", chats=CHATS_SOURCE).to_pylist()
    days = [row for row in days if row["dt"] <= now.date()]  # one in the future: a clock is wrong
    traffic_days = {row["dt"] for row in days if row["traffic"]}
    release, candidate, report = _endpoint(lake, facts.workload, manifests)
    served = _served(tables, facts, release, now)
    models = [*facts.policy.stages, *(["speculator"] if facts.policy.speculator else [])]
    seen = Evidence(
        facts.workload,
        release,
        sum(row["rows"] for row in days),
        max((row["dt"] for row in days), default=None),
        drafter=_trained(lake, manifests.get("speculator")),
        model=_trained(lake, manifests.get("sft_model") or manifests.get(facts.policy.served)),
        episodes=tuple(_episodes(tables, facts.workload, release)),
        **_tau(report, facts),
        **served,
        **_traffic(tables, facts.workload, traffic_days, settings, now),
        drafting=_drafting(lake, facts.workload, release),
        schedule_due=due(facts.cron, settings.timezone, now) if facts.cron else "",
        candidate=candidate,
        missing=tuple(name for name in models if name not in manifests),
        devices=settings.devices,
    )
    seen = _with_speed(seen, settings, report, served)
    return seen, costs_of(lake, facts, seen, manifests)


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
        release = read_manifest(home / champion) if champion else None
        part = next((item for item in release.inputs if item.kind == "dataset"), None) if release else None
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


def _trained(lake: LakeLayout, model: Manifest | None) -> TrainingRecord | None:
    """What a model was trained on, by the grouping pass that its datasets come from."""
    if model is None:
        return None
    waiting, seen = [model], set()
    while waiting:
        manifest = waiting.pop(0)
        if manifest.name.endswith("/curated_interactions"):
            return TrainingRecord(model.version, int(manifest.metrics.get("read") or 0))
        for item in manifest.inputs:
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
    """tau as served in the last days, and the speed that servers reported."""
    with workbench() as connection:
        attach_slice(connection, tables, "serving_metrics", facts.workload)
        days = rows(connection, "deciding/served_days", release=release, since=now - timedelta(SERVED_DAYS + 1)).to_pylist()
    drafts = sum(row["drafts"] for row in days)
    if not drafts:
        return {}
    speeds = [row["tokens_per_second"] for row in days if row["tokens_per_second"]]
    return {
        "tau_served": 1 + sum(row["accepted_tokens"] for row in days) / drafts,
        "tokens_per_second": sum(speeds) / len(speeds) if speeds else None,
    }


def _tau(report: Manifest | None, facts: RecipeFacts) -> dict[str, Any]:
    """Acceptance length of the release's drafter in its evaluation report, sampled as logged, else at the first temperature."""
    metrics = report.metrics if report else {}
    drafter = f"tau_{facts.architecture}"
    fixed = sorted(name for name in metrics if name.startswith(f"{drafter}_t") and not name.endswith(("_low", "_high")))
    name = next((each for each in (f"{drafter}_as_logged", *fixed) if isinstance(metrics.get(each), int | float)), None)
    return {"tau_released": float(metrics[name])} if name else {}


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
        [total] = rows(connection, "deciding/daily_tokens", chats=CHATS_SOURCE).to_pylist()
    if not total["requests"]:
        return {"requests_a_day": settings.requests_per_day}
    return {
        "requests_a_day": settings.requests_per_day or total["requests"] / len(days),
        "answer_tokens_a_request": total["answer_tokens"] / total["requests"] or None,
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


def _drafting(lake: LakeLayout, workload: str, release: str) -> tuple[str, ...]:
    """A sentence for each measured drafting of the release: up to which concurrency it pays."""
    choice = read_choice(lake.artefacts("release") / workload / release) if release else None
    return tuple(f"{each.label} {each.says}" for each in choice.break_even) if choice else ()


@dataclass(frozen=True)
class DecisionRun:
    """The newest Dagster run of a decision."""

    run_id: str
    status: str
    """Dagster's status of the run."""
    started: datetime | None = None
    ended: datetime | None = None
    earlier_s: float = 0.0
    """Seconds of earlier tries."""


def settle_decision(decision: Decision, run: DecisionRun | None, lake: LakeLayout, facts: RecipeFacts) -> Decision:
    """The decision with what is known now; itself where nothing changed."""
    settings = facts.decide
    if run is None:
        return decision
    if run.status not in ("SUCCESS", "FAILURE", "CANCELED"):
        begun: Outcome = "running" if run.status in ("STARTED", "STARTING", "CANCELING") else "waiting"
        return replace(decision, run_id=run.run_id if begun == "running" else None, outcome=begun)
    cost = (run.ended - run.started).total_seconds() + run.earlier_s if run.started and run.ended else None
    price = settings.price_per_device_hour
    money = cost * decision.devices / 3600 * price if cost is not None and price is not None else None
    known = replace(decision, run_id=run.run_id, cost_s=cost, money=money)
    if run.status == "CANCELED":
        return replace(known, outcome="cancelled", settled_ts=run.ended)
    release = _artefact(lake, facts, run, "release", "release")
    if run.status == "FAILURE":
        refused = release is not None and not _holds(lake, facts, release)
        gain = _gain(decision, lake, facts, run) if refused else None
        return replace(known, outcome="refused_by_gates" if refused else "failed", settled_ts=run.ended, gain=gain)
    known = replace(known, gain=_gain(decision, lake, facts, run))
    if not facts.releases:
        return replace(known, outcome="released", settled_ts=run.ended)
    if release is None:  # the same inputs gave the release that there was
        return replace(known, outcome="no_better", settled_ts=run.ended)
    outcome = _standing(lake, facts, release)
    return replace(known, outcome=outcome, settled_ts=None if outcome == "waiting" else run.ended)


def _standing(lake: LakeLayout, facts: RecipeFacts, release: Manifest) -> Outcome:
    """Where the release of a run that succeeded is now."""
    try:
        entries, aliases = Endpoint(lake, facts.workload).seen()
    except (EndpointError, EndpointLogError):
        return "waiting"
    if aliases.champion == release.version or any(entry.champion == release.version for entry in entries):
        return "released"
    if standing(entries, ReleaseRef(version=release.version)) == "withdrawn":
        return "cancelled"
    return "waiting" if aliases.candidate == release.version else "no_better"


def _holds(lake: LakeLayout, facts: RecipeFacts, release: Manifest) -> bool:
    try:
        return read_release(lake.artefacts("release") / facts.workload / release.version).passed
    except (ReleaseError, OSError, ValueError):
        return True


def _artefact(lake: LakeLayout, facts: RecipeFacts, run: DecisionRun, kind: Kind, name: str) -> Manifest | None:
    """What this run made; None if it reused what there was, or made none."""
    try:
        versions = Registry(lake, facts.workload).versions(kind, name)
        return next((each for each in reversed(versions) if each.run_id == run.run_id), None)
    except ManifestError:
        return None


def _gain(decision: Decision, lake: LakeLayout, facts: RecipeFacts, run: DecisionRun) -> float | None:
    report = _artefact(lake, facts, run, "dataset", "evaluation_report")
    if decision.action not in DRAFTERS:
        rise = report.metrics.get("loss_increase_target_champion") if report else None
        return -float(rise) if isinstance(rise, int | float) else None
    drafter = _artefact(lake, facts, run, "model", "speculator")
    measured = drafter.metrics if drafter else {}
    before, after = measured.get("previous_expected_tau"), measured.get("validation_expected_tau")
    if before and after:
        return float(after) / float(before) - 1
    paired = report.metrics.get(f"acceptance_gain_{facts.architecture}_champion") if report else None
    if isinstance(paired, int | float):
        return float(paired)
    before = decision.evidence.get("tau_released")
    after = report.metrics.get(f"tau_{facts.architecture}_as_logged") if report else None
    return float(after) / float(before) - 1 if before and after else None
