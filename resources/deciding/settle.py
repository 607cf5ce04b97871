"""What came of a decision: its run's end, its release, the real cost and the real gain.

The real gain is measured on the same rows as far as there are any: of a drafter that continued the previous one, both on the
new held-out answers (the training's own metrics); of another drafter or a model, against the champion's on the same test
prompts or rows. Otherwise it is the difference of the two reports.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from resources.artefacts import Registry
from resources.deciding.actions import DRAFTERS
from resources.deciding.decisions import Decision, Outcome
from resources.deciding.evidence import RecipeFacts
from resources.endpoints import Endpoint, EndpointError, EndpointLogError, standing
from resources.lake import LakeLayout
from resources.manifests import Kind, Manifest, ManifestError
from resources.releases import ReleaseError, ReleaseRef, read_release


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
    known = replace(
        decision,
        run_id=run.run_id,
        cost_s=cost,
        money=cost * decision.devices / 3600 * price if cost is not None and price is not None else None,
    )
    if run.status == "CANCELED":
        return replace(known, outcome="cancelled", settled_ts=run.ended)
    release = _artefact(lake, facts, run, "release", "release")
    if run.status == "FAILURE":
        refused = release is not None and not _holds(lake, facts, release)
        return replace(
            known,
            outcome="refused_by_gates" if refused else "failed",
            settled_ts=run.ended,
            gain=_gain(decision, lake, facts, run) if refused else None,
        )
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
    if standing(entries, ReleaseRef(release=release.version)) == "withdrawn":
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
