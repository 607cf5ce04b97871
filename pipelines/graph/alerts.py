"""Sensor for alerts: finds causes in the lake and in Dagster's history, and tells each of them once. It requests no run. A tick
that another process is already making does nothing (resources/monitoring/alerts/outbox.py)."""

import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from pipelines.contract import Recipe
from resources.drifting import served_release
from resources.endpoints import EndpointError, EndpointLogError
from resources.lake import LakeError, LakeLayout, Tables
from resources.launching import HOST_TAG, PROCESS_TAG, is_same_process
from resources.monitoring import (
    LOOKS_BACK,
    Alert,
    AlertSettings,
    FailedRun,
    budget_alerts,
    drift_alerts,
    failed_run_alerts,
    release_alerts,
    tell,
)

MOST_RUNS = 100
"""Most failed runs that one tick looks at, newest first."""
IN_PROGRESS = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


def alert_sensors(recipe: Recipe, place: Path) -> list[dg.SensorDefinition]:
    """The sensor of a recipe with `alerts`; none without."""
    settings: AlertSettings | None = recipe.alerts
    if settings is None:
        return []

    @dg.sensor(
        name="alerts",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Every minute: tells drift, releases that wait for a person, failed runs, missed gates, used budgets and "
        "rollbacks by the watch, each once, through the channels of the recipe's `alerts`.",
    )
    def alerts(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        try:
            lake = LakeLayout.open(place, create=False)
        except LakeError as error:
            return dg.SkipReason(str(error))
        location = context.code_location_origin.location_name if context.code_location_origin else ""
        causes = [*_of_the_lake(context, lake, recipe), *_of_runs(context.instance, recipe.workload, location)]
        sending = tell(lake, recipe.workload, settings, causes)
        for note in sending.notes:
            context.log.warning(note)
        return dg.SkipReason(sending.sentence)

    return [alerts]


def _of_the_lake(context: dg.SensorEvaluationContext, lake: LakeLayout, recipe: Recipe) -> list[Alert]:
    """A candidate that the recipe approves waits for no person: the run that made it is about to approve it."""
    tables, workload = Tables(lake), recipe.workload
    asks_people = recipe.release.approval != "automatic"
    causes = [*drift_alerts(tables, workload, served_release(lake, workload).name), *budget_alerts(tables, workload)]
    try:
        causes += [alert for alert in release_alerts(lake, workload) if asks_people or alert.kind != "approval"]
    except (EndpointError, EndpointLogError) as error:  # the other alerts are still sent
        context.log.warning(str(error))
    return causes


def _of_runs(instance: dg.DagsterInstance, workload: str, location: str) -> list[Alert]:
    after = datetime.now(UTC) - 2 * LOOKS_BACK
    statuses = [dg.DagsterRunStatus.FAILURE]
    failed = instance.get_run_records(dg.RunsFilter(statuses=statuses, updated_after=after), limit=MOST_RUNS)
    gone = [_failed(instance, record) for record in failed if _belongs(record.dagster_run, workload, location)]
    for record in instance.get_run_records(dg.RunsFilter(statuses=IN_PROGRESS), limit=MOST_RUNS):
        process = record.dagster_run.tags.get(PROCESS_TAG)
        is_here = record.dagster_run.tags.get(HOST_TAG, socket.gethostname()) == socket.gethostname()
        if process and is_here and _belongs(record.dagster_run, workload, location) and not is_same_process(process):
            run = record.dagster_run
            gone.append(FailedRun(run.run_id, run.job_name, datetime.now(UTC), process_is_gone=True))
    return failed_run_alerts(workload, gone)


def _failed(instance: dg.DagsterInstance, record: dg.RunRecord) -> FailedRun:
    run = record.dagster_run
    events = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE, limit=20).records
    ended = datetime.fromtimestamp(record.end_time, UTC) if record.end_time else record.update_timestamp
    steps, errors = [], []
    for event in (record.event_log_entry.dagster_event for record in events):
        if event is not None:
            steps.append((event.step_key or "").split("__")[-1])
            errors.append(next(_classes(event.event_specific_data.error), ""))
    if ended.tzinfo is None:
        ended = ended.replace(tzinfo=UTC)
    return FailedRun(run.run_id, run.job_name, ended, steps, errors)


def _classes(error: object) -> Iterator[str]:
    while error is not None:
        name, cause = getattr(error, "cls_name", None) or "", getattr(error, "cause", None)
        if not name.startswith("Dagster") or cause is None:
            yield name
        error = cause


def _belongs(run: dg.DagsterRun, workload: str, location: str) -> bool:
    """Whether a run is about this workload: by its assets, else by the code location that it came from."""
    if run.asset_selection:
        return any(key.path[0] == workload for key in run.asset_selection)
    origin = run.remote_job_origin
    return origin is None or not location or origin.location_name == location
