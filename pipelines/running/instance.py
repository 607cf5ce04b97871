"""The lake's Dagster instance, shared by the command line and the UI: `<lake>/.dagster`.

`open_instance(lake)` puts the shipped dagster.yaml there, newest wins. `fail_dead_runs(instance)` marks runs whose process is
gone as failed and frees their pool slots, which a killed run would keep for ever.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import dagster as dg

from model_ops.atomic_files import write_text
from resources.lake import Lake
from resources.launching.run_history import PROCESS_TAG
from resources.process_stamp import is_same_process

IN_PROGRESS = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING,
               dg.DagsterRunStatus.SUSPENDED]
LOCK = ".opening"
"""File in the instance's folder that is locked while the instance is opened."""
SHIPPED = Path(__file__).resolve().with_name("dagster.yaml")


def dagster_home(lake: Lake) -> Path:
    """MILLRACE_HOME if set, else the lake's own folder; prepared as a DAGSTER_HOME."""
    home = Path(os.environ.get("MILLRACE_HOME") or lake.dagster_home).expanduser().absolute()
    home.mkdir(parents=True, exist_ok=True)
    write_text(home / "dagster.yaml", SHIPPED.read_text())
    return home


def open_instance(lake: Lake) -> dg.DagsterInstance:
    """The Dagster instance of a lake. Sets DAGSTER_HOME for this process and its children.

    One process at a time opens it: Dagster creates its databases on first use, and two processes that do so at once fail.
    """
    home = dagster_home(lake)
    os.environ["DAGSTER_HOME"] = str(home)
    with (home / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        instance = dg.DagsterInstance.get()
        instance.get_runs_count()
        instance.all_instigator_state()  # the database of schedules and sensors is created last
    return instance


def fail_dead_runs(instance: dg.DagsterInstance) -> list[str]:
    """Fails the runs of `millrace run` whose process is dead, frees their pool slots, returns their ids."""
    dead = []
    for run in instance.get_runs(dg.RunsFilter(statuses=IN_PROGRESS)):
        process = run.tags.get(PROCESS_TAG)
        if process is None or is_same_process(process):
            continue
        instance.report_run_failed(run, message="The process of this run is gone; millrace run will continue its work.")
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
        dead.append(run.run_id)
    _free_slots_of_ended_runs(instance)
    return dead


def _free_slots_of_ended_runs(instance: dg.DagsterInstance) -> None:
    """Frees pool slots that ended runs still hold; later steps would wait for them for ever."""
    storage = instance.event_log_storage
    for pool in storage.get_concurrency_keys():
        info = storage.get_concurrency_info(pool)
        for run_id in info.active_run_ids | info.pending_run_ids | info.assigned_run_ids:
            run = instance.get_run_by_id(run_id)
            if run is None or run.is_finished:
                storage.free_concurrency_slots_for_run(run_id)

