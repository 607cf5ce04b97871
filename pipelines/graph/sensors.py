"""Sensor for new logs: requests one run for each batch of objects that were never read.

A tick lists the end of each source and a page of at most OBJECTS_PER_TICK keys after its cursor, so it stays under Dagster's
limit of 60 seconds for a prefix of any size; the next tick continues from there and starts over at the end. The run's key is
the digest of the objects, so the same objects never request two runs, unless the first one failed (asking_again.py).
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from pathlib import Path

import dagster as dg

from pipelines.contract.recipe import Recipe
from pipelines.graph.asking_again import OBJECTS_TAG, key_of
from pipelines.graph.days import daily_partitions
from resources.lake import Lake, LakeError
from resources.reading.chats import with_chats
from resources.reading.sources import SourceError
from resources.reading.watched_objects import watched_objects
from resources.tables import Tables
from stores.s3 import S3Error

OBJECTS_PER_TICK = 5_000
AWAY = (SourceError, OSError, LakeError, S3Error)
"""A store that is away: said, and tried again at the next tick."""


def new_logs(recipe: Recipe, place: Path, logs_job) -> dg.SensorDefinition:
    status = dg.DefaultSensorStatus.RUNNING if recipe.automation.watch_logs else dg.DefaultSensorStatus.STOPPED

    @dg.sensor(
        name="new_logs", job=logs_job, minimum_interval_seconds=60, default_status=status,
        description="Every minute: looks for log objects that were never read and runs the job logs over their days, once for "
        "the same objects. On where the recipe says `automation.watch_logs: true`, or when switched on here.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        cursor = json.loads(context.cursor) if context.cursor else {}
        try:
            lake = Lake.open(place)
            sources = with_chats(lake.root, recipe.workload, recipe.sources)
            found = watched_objects(Tables(lake), recipe.workload, sources, cursor, OBJECTS_PER_TICK)
        except AWAY as error:
            return dg.SkipReason(f"the lake or a log store is away, and the next tick tries again: {error}")
        if not found.days:
            return dg.SensorResult(skip_reason="nothing new", cursor=json.dumps(found.cursor))
        keys = daily_partitions(recipe, place).get_partition_keys()
        days = [day.isoformat() for day in found.days if keys and keys[0] <= day.isoformat() <= keys[-1]]
        if not days:
            return dg.SensorResult(skip_reason="nothing new", cursor=json.dumps(found.cursor))
        request = dg.RunRequest(
            run_key=key_of(context, found.digest),
            tags={
                OBJECTS_TAG: found.digest,
                # a day inside a pause is read with the partitions around it
                "dagster/asset_partition_range_start": keys[bisect_right(keys, days[0]) - 1],
                "dagster/asset_partition_range_end": keys[bisect_left(keys, days[-1])],
            },
        )
        return dg.SensorResult(run_requests=[request], cursor=json.dumps(found.cursor))

    return sensor
