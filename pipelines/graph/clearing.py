"""Removes old unfinished artefacts after a successful run of the job `train`.

    clear_after(context, lake, "math-tutor", keep_s, everything)   # context: of the resource that a run is closing

After the run, not before, so that a run continues its checkpoints first, however old they are. Only a successful run removes,
and a run of a part of the graph only for its own assets, since another run may still continue the others.
"""

from __future__ import annotations

from collections.abc import Collection

import dagster as dg

from pipelines.graph.jobs import TRAIN
from resources.artefacts.leftovers import remove_leftovers
from resources.lake import Lake
from resources.launching.relay import relay


def clear_after(context: dg.InitResourceContext, lake: Lake, workload: str, keep_s: float | None,
                everything: Collection[str]) -> None:
    """Removes leftovers older than `keep_s` seconds (None: nothing) and reports it on the terminal and in the run's log.

    `everything` names the assets of a whole `train` run.
    """
    run = context.run
    if run is None or run.job_name != TRAIN or context.instance is None:
        return
    if context.instance.get_run_stats(run.run_id).steps_failed:
        return
    selected = {key.path[-1] for key in run.asset_selection or ()}
    whole = not selected or selected >= set(everything)
    for found in remove_leftovers(lake, workload, keep_s, None if whole else selected):
        relay({"event": "note", "message": found.sentence()})
        if context.log is not None:
            context.log.info(found.sentence())
