"""Sensor after a promotion, where `release.watch` is given: watches the new champion, and rolls back if it does worse than it
should. It requests no run. Its cursor holds what was read of the sessions, which are read again when their tables changed."""

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import dagster as dg

from pipelines.contract import Recipe
from resources.catalog import publish
from resources.endpoints import EndpointError, EndpointLogError
from resources.lake import LakeLayout
from resources.monitoring import Look, WatchedSessions, WatchSignal, look_after_promotion
from resources.releases import WatchSettings
from resources.signing import KeyProblemError
from stores.lake_error import LakeError
from stores.s3 import S3Error

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
