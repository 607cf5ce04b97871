"""The run that a decision asks for: a part of the job `train`, with what it keeps and what it changes.

    request = run_request(decision, work, recipe)          # a RunRequest with the decision's id as its key
    kept_in(run)                                           # models that a run takes as they are, from its tags
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from pipelines.graph.jobs import TRAIN
from resources.deciding.actions import Work
from resources.deciding.decision import Decision

DECISION_TAG = "millrace/decision"
CAUSE_TAG = "millrace/cause"
WHY_TAG = "millrace/why"
KEPT_TAG = "millrace/kept"
LONGEST = 255
"""Characters of a tag: a database may hold no more."""


def run_request(decision: Decision, work: Work) -> dg.RunRequest:
    """The request. Dagster starts one run for a key, however often it is asked for."""
    return dg.RunRequest(
        run_key=decision.decision_id, job_name=TRAIN,
        asset_selection=[dg.AssetKey([decision.workload, name]) for name in work.stages],
        run_config=_run_config(work),
        tags={DECISION_TAG: decision.decision_id, CAUSE_TAG: decision.cause, WHY_TAG: decision.cause_text[:LONGEST],
              **({KEPT_TAG: ",".join(work.kept)} if work.kept else {})})


def kept_in(run: dg.DagsterRun | None) -> frozenset[str]:
    """The models that a run takes as they are; none for a run that no decision asked for."""
    named = run.tags.get(KEPT_TAG, "") if run is not None else ""
    return frozenset(name for name in named.split(",") if name)


def _run_config(work: Work) -> dict[str, Any]:
    return {"ops": {name: {"config": dict(values)} for name, values in work.overrides.items() if name in work.stages}}
