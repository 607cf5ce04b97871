"""Alerts about releases, drift, the budget of retraining, and runs that failed.

An error's message may hold what a library read, so the alert names the step and the kind of error, and where to read the rest.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from model_ops.jobs import counted
from resources.deciding import NEVER_ENOUGH, UNKNOWN_COST
from resources.endpoints import Aliases, Endpoint, EndpointError, EndpointLogEntry, EndpointLogError, approvals_of, stale_parts
from resources.lake import SCHEMAS, LakeLayout, Tables, attach_slice, rows, workbench
from resources.manifests import APPROVAL_PAGE, ManifestError, read_manifest
from resources.monitoring.alerts.settings import Alert
from resources.releases import GateVerdict, ReleaseError, gate_problem, read_release

WATCH = "millrace watch"
"""Who the watch after a promotion says that it is, in the endpoint's log."""


def release_alerts(lake: LakeLayout, workload: str) -> list[Alert]:
    """Raises EndpointError or EndpointLogError where the endpoint cannot be read."""
    entries, aliases = Endpoint(lake, workload).seen()
    return [*_rollbacks(lake, workload, entries), *_of_the_candidate(lake, workload, entries, aliases)]


def _of_the_candidate(lake: LakeLayout, workload: str, entries: list[EndpointLogEntry], aliases: Aliases) -> Iterator[Alert]:
    """Nothing for a candidate that somebody withdrew, that is approved, or that a newer training has replaced."""
    if aliases.candidate is None:
        return
    directory = lake.artefacts("release") / workload / aliases.candidate
    try:
        release, manifest = read_release(directory), read_manifest(directory)
        approvals = approvals_of(lake, directory)
        outdated = stale_parts(lake, directory)
    except (ReleaseError, ManifestError, EndpointError, EndpointLogError):
        return  # `millrace status` and the next run name it
    digest = manifest.digest
    at = max((entry.at for entry in entries if entry.release == aliases.candidate), default=manifest.created_at)
    facts: dict[str, str | int | float] = {"release": aliases.candidate, "digest": digest[:12]}
    facts["champion"] = aliases.champion or "none"
    problems = [problem for gate in release.gates if (problem := gate_problem(gate))]
    if problems:
        yield Alert(
            kind="gates",
            workload=workload,
            cause=f"{aliases.candidate}/{digest}",
            at=at,
            facts=facts | {"missed": len(problems)},
            title=f"{workload}: release {aliases.candidate} missed {counted(len(problems), 'gate')}",
            text="; ".join(problems) + ".",
            todo=f"Read {_report(directory)}. The champion stays; the release cannot be approved.",
        )
    elif approvals.missing and not outdated and not approvals.withdrawn:
        had = f" Approved so far by {len(approvals.counted)}." if approvals.counted else ""
        yield Alert(
            kind="approval",
            workload=workload,
            cause=f"{aliases.candidate}/{digest}/{approvals.missing}",
            at=at,
            facts=facts | {"gates": len(release.gates), "missing_approvals": approvals.missing},
            title=f"{workload}: release {aliases.candidate} waits for {approvals.needed}",
            text=f"{f'{release.worth} ' if release.worth else ''}{GateVerdict.of(release.gates).sentence}. "
            f"{_measured(release.gates)}{had}",
            todo=f"Read {_report(directory)}, then decide: millrace approve {aliases.candidate} {lake.option}, or the "
            "job approve or reject in the Dagster UI.",
        )


def _rollbacks(lake: LakeLayout, workload: str, entries: list[EndpointLogEntry]) -> Iterator[Alert]:
    for entry in entries:
        if entry.action == "rolled back" and entry.by == WATCH:
            yield Alert(
                kind="rollback",
                workload=workload,
                cause=f"{entry.number}/{entry.sha256}",
                at=entry.at,
                facts={"release": entry.release or "none", "replaced": entry.replaces or "none", "entry": entry.number},
                title=f"{workload}: the watch rolled {entry.replaces} back to {entry.release}",
                text=f"{entry.reason or 'The log holds no reason'}.".replace("..", "."),
                todo=f"Compare the two: millrace compare {entry.replaces} {entry.release} {lake.option}. Release "
                f"{entry.replaces} is served again only if somebody approves it.",
            )


def _measured(gates: list) -> str:
    """The numbers of gates that were measured."""
    said = [f"{gate.name} {gate.measured:.4g}" for gate in gates if gate.measured is not None]
    return f"Measured: {', '.join(said)}." if said else ""


def _report(directory: Path) -> Path:
    page = directory / APPROVAL_PAGE
    return page if page.exists() else directory / "report.html"


QUIET = timedelta(days=7)
"""Alarms that are at most this far apart belong to one change, which is sent once."""
BUDGET_KEY = re.compile(r"automation\.decide\.budget\.(\w+)")
DECISIONS = "retraining_decisions"


def drift_alerts(tables: Tables, workload: str, release: str) -> list[Alert]:
    """One alert for each change that began: alarms of days that follow each other are one. release: the served one, "" for
    none. A change is named by its first day. Late logs can remove that day's alarm, or make an earlier day alarm: an alert that
    was told by another day of the change, or by a day at most QUIET before it, is the same."""
    with workbench() as connection:
        attach_slice(connection, tables, "drift", workload)
        alarms = rows(connection, "alerting/alarms", release=release).to_pylist()
    return [_of_a_change(tables, workload, release, change) for change in _changes(alarms)]


def _changes(alarms: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Alarms in order of their days, parted where no test alarmed for longer than QUIET."""
    change: list[dict[str, Any]] = []
    for row in alarms:
        if change and row["dt"] - change[-1]["dt"] > QUIET:
            yield change
            change = []
        change.append(row)
    if change:
        yield change


def _of_a_change(tables: Tables, workload: str, release: str, change: list[dict[str, Any]]) -> Alert:
    first: date = change[0]["dt"]
    began = [row for row in change if row["dt"] == first]
    tests = ", ".join(dict.fromkeys(row["test"] for row in change))
    said = "; ".join(
        f"{row['test']} over {row['window_days']} d: {row['value']:.4g}"
        + (f", alarms from {row['bound']:.4g}" if row["bound"] is not None else "")
        for row in began
    )
    than = f"the traffic that release {release} was made for" if release else "the first window of the logs"
    days = ((change[-1]["dt"] - first) + QUIET).days
    return Alert(
        kind="drift",
        workload=workload,
        cause=f"{release}/{first}",
        same_causes=[f"{release}/{first - QUIET + timedelta(day)}" for day in range(days + 1)],
        at=min(row["ts"] for row in began),
        title=f"{workload}: drift since {first} ({tests})",
        text=f"The traffic of {first} differs from {than}. {said}.",
        todo=f"Look at the plots of drift_report, or at {tables.lake.root / 'drift' / f'{workload}.html'}. If the traffic has "
        "changed for good, run the recipe again: millrace run RECIPE.",
        facts={"release": release or "none", "first_day": first.isoformat(), "tests": tests, "alarms": len(change)},
    )


def budget_alerts(tables: Tables, workload: str) -> list[Alert]:
    """One alert for each budget and week (ISO) in which it kept a retraining from being run."""
    if DECISIONS not in SCHEMAS:
        return []
    with workbench() as connection:
        attach_slice(connection, tables, DECISIONS, workload)
        held = rows(connection, "alerting/held_by_budget").to_pylist()
    by_key: dict[str, Alert] = {}
    for row in held:
        said = f"{row['why']} {' '.join(_reasons(row['options']))}"
        for key in dict.fromkeys(BUDGET_KEY.findall(said)):
            year, week, _ = row["ts"].isocalendar()
            standing, todo = _advice(said, key)
            alert = Alert(
                kind="budget",
                workload=workload,
                cause=f"{key}/{year}-W{week:02d}",
                at=row["ts"],
                title=f"{workload}: the budget {key} {standing}",
                text=f"Decision {row['decision_id']} ({row['cause']}) would have retrained on {row['ts']:%Y-%m-%d %H:%M} "
                f"UTC, and the budget automation.decide.budget.{key} does not allow it.",
                todo=todo,
                facts={"decision": row["decision_id"], "cause": row["cause"], "budget": key, "week": f"{year}-W{week:02d}"},
            )
            by_key.setdefault(alert.id, alert)
    return list(by_key.values())


def _advice(said: str, key: str) -> tuple[str, str]:
    """How a budget stands, and what to do about it, by what a decision said of it."""
    name = f"automation.decide.budget.{key}"
    if f"{name} {UNKNOWN_COST}" in said:
        if "set price_per_device_hour" in said:
            return "needs a cost that is unknown", "Set automation.decide.price_per_device_hour in the recipe."
        return ("needs a cost that is unknown", "Run it yourself once, which measures what it costs: millrace run RECIPE.")
    raise_it = f"Raise {name} in the recipe, or run it yourself: millrace run RECIPE."
    if f"{name} is 0" in said:
        return "is 0", raise_it
    if f"{NEVER_ENOUGH} ({name})" in said:
        return "is too small", raise_it
    return "is used", f"{raise_it} Or wait: the decision says when the budget suffices."


def _reasons(options: str | None) -> list[str]:
    """Why each option was not chosen; none if the column holds something else."""
    try:
        return [str(option["why_not"]) for option in json.loads(options or "[]")]
    except (ValueError, TypeError, KeyError):
        return []


REQUEST_JOBS = ("retrain", "withdraw_request")
DECISION_JOBS = ("approve", "reject", "rollback", *REQUEST_JOBS)
"""Jobs that record a person's decision or request. They make no artefacts, so no run goes on from what they finished."""
REFUSAL = "Failure"
"""Error class of a step that rejected its form: the person who filled it in sees the message, so no alert is sent."""


@dataclass(frozen=True)
class FailedRun:
    """A run of Dagster that failed, or whose process is gone."""

    run_id: str
    job: str
    at: datetime
    steps: list[str] = field(default_factory=list)
    """Those that failed."""
    errors: list[str] = field(default_factory=list)
    """The class of their errors."""
    process_is_gone: bool = False


def failed_run_alerts(workload: str, runs: Iterable[FailedRun]) -> list[Alert]:
    """One alert for each run, but for decisions and requests that were refused."""
    return [_alert(workload, run) for run in runs if run.job not in DECISION_JOBS or set(run.errors) != {REFUSAL}]


def _alert(workload: str, run: FailedRun) -> Alert:
    steps = ", ".join(f"{step} ({error})" if error else step for step, error in zip(run.steps, run.errors, strict=True))
    why = "Its process is gone." if run.process_is_gone else f"Failed: {steps}." if steps else "No step says why."
    before, after = " Finished steps are kept, and the endpoint did not move.", "The next run continues where this one ended."
    if run.job in REQUEST_JOBS:
        before, after = "", f"Whether the request is kept, millrace decisions {workload} says."
    elif run.job in DECISION_JOBS:
        before, after = "", "Whether the endpoint moved, millrace status says."
    return Alert(
        kind="failed_run",
        workload=workload,
        cause=run.run_id,
        at=run.at,
        title=f"{workload}: a run of {run.job} failed" + (f" at {', '.join(run.steps)}" if run.steps else ""),
        text=f"Run {run.run_id} failed. {why}{before}",
        todo=f"Open run {run.run_id[:8]} in the Dagster UI: the failed step says in one sentence what to change. {after}",
        facts={"run": run.run_id, "job": run.job, "steps": ", ".join(run.steps) or "none"},
    )
