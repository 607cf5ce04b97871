"""Objects of logs whose run failed are asked for again, after pauses that grow; not while a run has them, or if somebody
cancelled it.

    run_key = key_of(context, found.digest)          # of a run request with the tag OBJECTS_TAG: found.digest

Dagster makes one run of a key for ever. A run that was killed too often, or could not reach the store, would otherwise leave
its objects unread until newer ones arrive.
"""

from __future__ import annotations

import time

import dagster as dg

from model_ops.backoff import pause_after

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
