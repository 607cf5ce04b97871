"""Sensors that ask for a run of new logs, tell alerts, and watch a new champion. Each tick stays under Dagster's 60 s.
The key of a run for new logs is the digest of the objects: those whose run was killed or could not reach the store are asked
for again after growing pauses, unless somebody cancelled it."""

import json
import socket
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from model_ops.machine import pause_after
from pipelines.contract import Recipe
from pipelines.graph.schedules import daily_partitions
from resources.catalog import publish
from resources.drifting import served_release
from resources.endpoints import EndpointError, EndpointLogError
from resources.lake import LakeError, LakeLayout, Tables
from resources.launching import HOST_TAG, PROCESS_TAG, is_same_process
from resources.monitoring import (
    LOOKS_BACK,
    Alert,
    AlertSettings,
    FailedRun,
    Look,
    WatchedSessions,
    WatchSignal,
    budget_alerts,
    drift_alerts,
    failed_run_alerts,
    look_after_promotion,
    release_alerts,
    tell,
)
from resources.reading import with_chats
from resources.releases import WatchSettings
from resources.signing import KeyProblemError
from resources.sources import SourceError, watched_objects
from stores.s3 import S3Error

OBJECTS_PER_TICK = 5_000
AWAY = (SourceError, OSError, LakeError, S3Error)
"""A store that is away: said, and tried again at the next tick."""


def new_logs(recipe: Recipe, place: Path, logs_job) -> dg.SensorDefinition:
    status = dg.DefaultSensorStatus.RUNNING if recipe.automation.watch_logs else dg.DefaultSensorStatus.STOPPED

    @dg.sensor(
        name="new_logs",
        job=logs_job,
        minimum_interval_seconds=60,
        default_status=status,
        description="Every minute: looks for log objects that were never read and runs the job logs over their days, once for "
        "the same objects. On where the recipe says `automation.watch_logs: true`, or when switched on here.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        cursor = json.loads(context.cursor) if context.cursor else {}
        try:
            lake = LakeLayout.open(place)
            sources = with_chats(lake.root, recipe.workload, recipe.sources)
            watched = watched_objects(Tables(lake), recipe.workload, sources, cursor, OBJECTS_PER_TICK)
        except AWAY as error:
            return dg.SkipReason(f"the lake or a log store is away, and the next tick tries again: {error}")
        if not watched.days:
            return dg.SensorResult(skip_reason="nothing new", cursor=json.dumps(watched.cursor))
        keys = daily_partitions(recipe, place).get_partition_keys()
        days = [day.isoformat() for day in watched.days if keys and keys[0] <= day.isoformat() <= keys[-1]]
        if not days:
            return dg.SensorResult(skip_reason="nothing new", cursor=json.dumps(watched.cursor))
        request = dg.RunRequest(
            run_key=key_of(context, watched.digest),
            tags={
                OBJECTS_TAG: watched.digest,
                # a day inside a pause is read with the partitions around it
                "dagster/asset_partition_range_start": keys[bisect_right(keys, days[0]) - 1],
                "dagster/asset_partition_range_end": keys[bisect_left(keys, days[-1])],
            },
        )
        return dg.SensorResult(run_requests=[request], cursor=json.dumps(watched.cursor))

    return sensor


OBJECTS_TAG = "millrace/objects"
"""Tag of a run: the digest of the objects that it was asked for."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 300.0, 86_400.0


def key_of(context: dg.SensorEvaluationContext, digest: str) -> str:
    """The key of a run for these objects: a new one if earlier runs failed and the pause after the last of them is over."""
    try:
        instance = context.instance
    except dg.DagsterInvariantViolationError:
        return digest  # a tick without a history
    records = instance.get_run_records(dg.RunsFilter(tags={OBJECTS_TAG: digest}), order_by="id", ascending=True)
    failed = [record for record in records if record.dagster_run.status == dg.DagsterRunStatus.FAILURE]
    if not failed or len(failed) < len(records):
        return digest
    last = failed[-1]
    if last.dagster_run.tags.get("dagster/will_retry") == "true":
        return digest  # the daemon is about to start it again
    pause_s = pause_after(len(failed), FIRST_PAUSE_S, LONGEST_PAUSE_S)
    return digest if time.time() - (last.end_time or 0.0) < pause_s else f"{digest}-{len(failed)}"


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


NOT_NOW = (EndpointError, EndpointLogError, KeyProblemError, LakeError, S3Error, OSError)
"""What a person or time mends."""


def release_watch(recipe: Recipe, place: Path) -> list[dg.SensorDefinition]:
    """The sensor of a recipe with `release.watch`; none without."""
    settings: WatchSettings | None = recipe.release.watch
    if settings is None:
        return []

    @dg.sensor(
        name="release_watch",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Every minute, for {settings.hours:g} hours after a promotion: compares what the new champion does in "
        "service with the champion before it, and rolls back once if it is worse than `release.watch` tolerates.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        try:
            lake = LakeLayout.open(place, create=False)
            known = _known(context.cursor)
            look = look_after_promotion(lake, recipe.workload, settings, rules=recipe.curation.feedback, known=known)
            if look.rolled_back is not None:
                with suppress(LakeError, OSError):  # the next run brings the catalog up to date; the rollback must be reported
                    publish(lake)
        except NOT_NOW as error:
            return dg.SensorResult(skip_reason=f"the lake cannot be read now, and is read again: {error}")
        return dg.SensorResult(skip_reason=look.sentence, cursor=_cursor(known), asset_events=_moved(recipe.workload, look))

    return [sensor]


def _moved(workload: str, look: Look) -> list[dg.AssetMaterialization]:
    """The endpoint's entry in Dagster's history after a rollback, as `millrace rollback` writes it."""
    if (aliases := look.rolled_back) is None:
        return []
    metadata = {"champion": aliases.champion or "", "previous": aliases.previous or "", "by": aliases.changed_by}
    return [dg.AssetMaterialization(asset_key=[workload, "endpoint"], description=look.sentence, metadata=metadata)]


def _known(cursor: str | None) -> WatchedSessions:
    try:
        said = json.loads(cursor or "{}")
        return WatchedSessions(tuple(said.get("key", ())), [WatchSignal(**finding) for finding in said.get("findings", [])])
    except (ValueError, TypeError, AttributeError):
        return WatchedSessions()


def _cursor(known: WatchedSessions) -> str:
    return json.dumps({"key": known.key, "findings": [asdict(finding) for finding in known.findings]})
