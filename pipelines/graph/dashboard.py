"""Writes a workload's dashboard at the end of every run of the job `train`: <lake>/reports/<workload>.html.

    dashboard_after(context, lake, "math-tutor")      # context: of the resource that a run is closing
"""

from __future__ import annotations

import dagster as dg

from pipelines.graph.jobs import TRAIN
from resources.lake import Lake
from resources.reporting.dashboard import dashboard_path, write_dashboard


def dashboard_after(context: dg.InitResourceContext, lake: Lake, workload: str) -> None:
    """Also after a failed run, whose page says what there is. A page that cannot be written fails no run: its log says so."""
    run = context.run
    if run is None or run.job_name != TRAIN:
        return
    try:
        write_dashboard(lake, workload, dashboard_path(lake, workload))
    except Exception as error:  # the run's work is done; `millrace report` makes the page again and shows the error
        if context.log is not None:
            context.log.warning(f"the dashboard was not written ({type(error).__name__}): millrace report {workload} says why")
