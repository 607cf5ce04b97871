"""Alerts about runs that failed, from what Dagster's history says of them.

    failed_run_alerts("math-tutor", [FailedRun(run_id, "train", at, ["sft_model"], ["ManifestError"])])

An error's message may hold what a library read, so the alert names the step and the kind of error, and where to read the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from resources.alerting.alert import Alert

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
    kept, after = " Finished steps are kept, and the endpoint did not move.", "The next run continues where this one ended."
    if run.job in DECISION_JOBS:
        kept, after = "", (f"Whether the request is kept, millrace decisions {workload} says." if run.job in REQUEST_JOBS else
                           "Whether the endpoint moved, millrace status says.")
    return Alert(
        kind="failed_run", workload=workload, cause=run.run_id, at=run.at,
        title=f"{workload}: a run of {run.job} failed" + (f" at {', '.join(run.steps)}" if run.steps else ""),
        text=f"Run {run.run_id} failed. {why}{kept}",
        todo=f"Open run {run.run_id[:8]} in the Dagster UI: the failed step says in one sentence what to change. {after}",
        facts={"run": run.run_id, "job": run.job, "steps": ", ".join(run.steps) or "none"})
