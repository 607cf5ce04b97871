"""The two jobs: `logs` by day, and `train` once over all days. A hook says in the run's log why a step failed; of a bug it
names only the kind, since the message may hold what was read."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import dagster as dg

from pipelines.storage import storage_sentence
from resources.digests import PACKAGES
from resources.launching import JOB_TAG
from resources.stages import logs_stages

TRAIN = "train"


def jobs(
    workload: str, disabled: Collection[str] = ()
) -> list[dg.unresolved_asset_job_definition.UnresolvedAssetJobDefinition]:
    of_logs = dg.AssetSelection.assets(*([workload, name] for name in logs_stages(disabled)))
    observed = dg.AssetSelection.assets([workload, "logs"])
    return [
        dg.define_asset_job(
            "logs",
            of_logs,
            hooks={failure_in_one_sentence},
            description="Reads new log files, cleans their rows and compares them with the reference window, one partition per "
            "UTC day; any range of days is one run.",
            tags={JOB_TAG: f"{workload}/logs"},
        ),
        dg.define_asset_job(
            TRAIN,
            dg.AssetSelection.all() - of_logs - observed,
            hooks={failure_in_one_sentence},
            description="From cleaned rows to a release candidate: datasets, models, drafter, evaluation, gates. Steps whose "
            "inputs did not change are reused. Moves the endpoint where the release is approved.",
            tags={JOB_TAG: f"{workload}/{TRAIN}"},
        ),
    ]


@dg.failure_hook(name="failure_in_one_sentence")
def failure_in_one_sentence(context: dg.HookContext) -> None:
    """Logs the sentence as an error of the step."""
    step = (context.step_key or "").split("__")[-1]
    context.log.error(f"{step}: {sentence_of(context.op_exception)}")


def sentence_of(error: BaseException | None) -> str:
    """What a person needs to know of a step's error."""
    if storage := storage_sentence(error, None):
        return storage
    chain = list(_chain(error))
    for each in chain:
        if isinstance(each, dg.Failure):
            return each.description or "it failed without a reason"
        if type(each).__module__.split(".")[0] in PACKAGES:
            return " ".join(str(each).split())
    kind = type(chain[0]).__name__ if chain else "an unknown error"
    return f"{kind}, which is a bug of millrace or of what it uses: please report it with the traceback of this step"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
