"""Alerts about releases, from the endpoint's log: one waits for a person, one missed its gates, the watch rolled one back.

    release_alerts(lake, "math-tutor")
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from model_ops.wording import counted
from resources.alerting.alert import Alert
from resources.artefacts.erased import APPROVAL_PAGE
from resources.artefacts.manifest import ManifestError, read_manifest
from resources.lake import Lake
from resources.releasing.approvals import approvals_of
from resources.releasing.endpoint_log import EndpointLogError, Entry
from resources.releasing.endpoints import Aliases, Endpoint, EndpointError
from resources.releasing.gate_result import missed
from resources.releasing.recheck import superseded
from resources.releasing.release import ReleaseError, read_release

WATCH = "millrace watch"
"""Who the watch after a promotion says that it is, in the endpoint's log."""


def release_alerts(lake: Lake, workload: str) -> list[Alert]:
    """Raises EndpointError or EndpointLogError where the endpoint cannot be read."""
    entries, aliases = Endpoint(lake, workload).seen()
    return [*_rollbacks(lake, workload, entries), *_of_the_candidate(lake, workload, entries, aliases)]


def _of_the_candidate(lake: Lake, workload: str, entries: list[Entry], aliases: Aliases) -> Iterator[Alert]:
    """Nothing for a candidate that somebody withdrew, that is approved, or that a newer training has replaced."""
    if aliases.candidate is None:
        return
    directory = lake.artefacts("release") / workload / aliases.candidate
    try:
        release, digest = read_release(directory), read_manifest(directory).digest
        approvals = approvals_of(lake, directory)
        outdated = superseded(lake, directory)
    except (ReleaseError, ManifestError, EndpointError, EndpointLogError):
        return  # `millrace status` and the next run name it
    at = max((entry.at for entry in entries if entry.release == aliases.candidate), default=None) or _made(directory)
    facts: dict[str, str | int | float] = {
        "release": aliases.candidate, "digest": digest[:12], "champion": aliases.champion or "none"}
    problems = [problem for gate in release.gates if (problem := missed(gate))]
    if problems:
        yield Alert(
            kind="gates", workload=workload, cause=f"{aliases.candidate}/{digest}", at=at,
            facts=facts | {"missed": len(problems)},
            title=f"{workload}: release {aliases.candidate} missed {counted(len(problems), 'gate')}",
            text="; ".join(problems) + ".",
            todo=f"Read {_report(directory)}. The champion stays; the release cannot be approved.")
    elif approvals.missing and not outdated and not approvals.withdrawn:
        had = f" Approved so far by {len(approvals.counted)}." if approvals.counted else ""
        yield Alert(
            kind="approval", workload=workload, cause=f"{aliases.candidate}/{digest}/{approvals.missing}", at=at,
            facts=facts | {"gates": len(release.gates), "missing_approvals": approvals.missing},
            title=f"{workload}: release {aliases.candidate} waits for {approvals.needed}",
            text=f"All {counted(len(release.gates), 'gate')} hold. {_measured(release.gates)}{had}",
            todo=f"Read {_report(directory)}, then decide: millrace approve {aliases.candidate} --lake {lake.place}, or the "
                 "job approve or reject in the Dagster UI.")


def _rollbacks(lake: Lake, workload: str, entries: list[Entry]) -> Iterator[Alert]:
    for entry in entries:
        if entry.action == "rolled back" and entry.by == WATCH:
            yield Alert(
                kind="rollback", workload=workload, cause=f"{entry.number}/{entry.sha256}", at=entry.at,
                facts={"release": entry.release or "none", "replaced": entry.replaces or "none", "entry": entry.number},
                title=f"{workload}: the watch rolled {entry.replaces} back to {entry.release}",
                text=f"{entry.reason or 'The log holds no reason'}.".replace("..", "."),
                todo=f"Compare the two: millrace compare {entry.replaces} {entry.release} --lake {lake.place}. Release "
                     f"{entry.replaces} is served again only if somebody approves it.")


def _measured(gates: list) -> str:
    """The numbers of gates that were measured."""
    said = [f"{gate.name} {gate.measured:.4g}" for gate in gates if gate.measured is not None]
    return f"Measured: {', '.join(said)}." if said else ""


def _report(directory: Path) -> Path:
    page = directory / APPROVAL_PAGE
    return page if page.exists() else directory / "report.html"


def _made(directory: Path) -> datetime:
    return read_manifest(directory).created_at
