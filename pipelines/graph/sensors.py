"""Sensor for new logs: requests one run for each batch of objects that were never read. A tick lists at most OBJECTS_PER_TICK
keys after its cursor, to stay under Dagster's 60 s. The run's key is the digest of the objects, so those whose run was killed
or could not reach the store are asked for again after growing pauses, unless somebody cancelled it."""

import json
import time
from bisect import bisect_left, bisect_right
from pathlib import Path

import dagster as dg

from model_ops.machine import pause_after
from pipelines.contract import Recipe
from pipelines.graph.schedules import daily_partitions
from resources.lake import LakeError, LakeLayout, Tables
from resources.reading import with_chats
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
