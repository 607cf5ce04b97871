"""The two jobs: `logs` by day, and `train` once over all days. One job for both would train once per day of a backfill."""

from __future__ import annotations

from collections.abc import Collection

import dagster as dg

from pipelines.graph.failures import failure_in_one_sentence
from resources.launching.run_history import JOB_TAG
from resources.stages import logs_stages

TRAIN = "train"


def jobs(
    workload: str, disabled: Collection[str] = ()
) -> list[dg.unresolved_asset_job_definition.UnresolvedAssetJobDefinition]:
    of_logs = dg.AssetSelection.assets(*([workload, name] for name in logs_stages(disabled)))
    observed = dg.AssetSelection.assets([workload, "logs"])
    return [
        dg.define_asset_job(
            "logs", of_logs, hooks={failure_in_one_sentence},
            description="Reads new log files, cleans their rows and compares them with the reference window, one partition per "
            "UTC day; any range of days is one run.",
            tags={JOB_TAG: f"{workload}/logs"},
        ),
        dg.define_asset_job(
            TRAIN, dg.AssetSelection.all() - of_logs - observed, hooks={failure_in_one_sentence},
            description="From cleaned rows to a release candidate: datasets, models, drafter, evaluation, gates. Steps whose "
            "inputs did not change are reused. Moves the endpoint where the release is approved.",
            tags={JOB_TAG: f"{workload}/{TRAIN}"},
        ),
    ]
