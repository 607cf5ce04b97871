"""The lake's Dagster instance, shared by the command line, the UI and the daemon: `<lake>/.dagster`, with the shipped
dagster.yaml and what the environment adds (MILLRACE_POSTGRES, MILLRACE_DEVICES)."""

import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from assets.ownership import LAKE_POOL, WORKER_POOL
from model_ops.files import file_lock, write_text
from resources.lake import LakeLayout
from resources.launching import (
    HOST_TAG,
    PROCESS_TAG,
    RUN_TAG,
    SUBMITTED,
    devices,
    has_run_since,
    is_copied,
    is_launched,
    is_same_process,
    postgres,
)

IN_PROGRESS = [
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
    dg.DagsterRunStatus.SUSPENDED,
]
STARTED_AS = re.compile(r"Started process for run \(pid: (\d+)\)")
"""What Dagster writes into the history when a launched run's process begins."""
CONTINUED = "The process of this run is gone; millrace run will continue its work."
RETRIED = "The process of this run is gone; its finished steps are kept, and the daemon starts a new run from the others."
SECONDS_BETWEEN_LOOKS = 10.0
LOCK = ".opening"
"""File in the instance's folder that is locked while the instance is opened."""
SHIPPED = Path(__file__).resolve().with_name("dagster.yaml")


def dagster_home(lake: LakeLayout) -> Path:
    """MILLRACE_HOME if set, else the lake's own folder; prepared as a DAGSTER_HOME. Raises PostgresError."""
    home = Path(os.environ.get("MILLRACE_HOME") or lake.dagster_home).expanduser().absolute()
    home.mkdir(parents=True, exist_ok=True)
    if not postgres.url() and (home / "dagster.yaml").is_file() and postgres.VARIABLE in _storage_of(home / "dagster.yaml"):
        raise postgres.PostgresError(
            f"the history of {home} is in Postgres, and {postgres.VARIABLE} is not set: set it, or delete "
            f"{home / 'dagster.yaml'} to begin a history in files"
        )
    write_text(home / "dagster.yaml", _settings())
    return home


def _storage_of(settings: Path) -> str:
    return settings.read_text(encoding="utf-8", errors="replace").partition("\nstorage:")[2]


def _settings() -> str:
    settings = SHIPPED.read_text(encoding="utf-8")
    if (count := len(devices())) > 1:  # a run for each group of devices, and one that reads logs
        settings = settings.replace("max_concurrent_runs: 2 ", f"max_concurrent_runs: {count + 1} ")
    return settings + (postgres.STORAGE if postgres.use() else "")


def open_instance(lake: LakeLayout) -> dg.DagsterInstance:
    """The Dagster instance of a lake. Sets DAGSTER_HOME for this process and its children. One process at a time opens it:
    Dagster creates its databases on first use, and two processes that do so at once fail."""
    home = dagster_home(lake)
    os.environ["DAGSTER_HOME"] = str(home)
    if postgres.url():
        postgres.require()
    with file_lock(home / LOCK):
        instance = dg.DagsterInstance.get()
        instance.get_runs_count()
        instance.all_instigator_state()  # the database of schedules and sensors is created last
        if devices():
            set_pools(instance)
    return instance


def set_pools(instance: dg.DagsterInstance) -> None:
    """As many steps with a worker at a time as there are groups of devices; the lake has one writer. The daemon sets that when
    it starts, and every command that MILLRACE_DEVICES is set for."""
    storage = instance.event_log_storage
    for pool, slots in ((LAKE_POOL, 1), (WORKER_POOL, max(1, len(devices())))):
        if storage.supports_global_concurrency_limits and storage.get_concurrency_info(pool).slot_count != slots:
            storage.set_concurrency_slots(pool, slots)


def fail_dead_runs(instance: dg.DagsterInstance, launched: bool = False) -> list[str]:
    """Fails the runs whose process is dead, frees their pool slots, returns their ids. launched: also the runs that the daemon
    launched. Only the daemon's machine may say that (pipelines/running/daemon.py): their processes live there. Runs of
    `millrace run` are judged on the machine where they were started."""
    dead = []
    for run in instance.get_runs(dg.RunsFilter(statuses=IN_PROGRESS)):
        was_launched = is_launched(run)
        if was_launched and not (launched and _is_dead(instance, run)):
            continue
        process = run.tags.get(PROCESS_TAG)
        if not was_launched and (process is None or run.tags.get(HOST_TAG, socket.gethostname()) != socket.gethostname()):
            continue
        copied = RUN_TAG in run.tags and is_copied(Path(instance.root_directory) / SUBMITTED / run.tags[RUN_TAG])
        if not was_launched and is_same_process(process) and not copied:
            continue
        if (now := instance.get_run_by_id(run.run_id)) is None or now.is_finished:  # it ended between the looks
            continue
        instance.report_run_failed(run, message=RETRIED if was_launched else CONTINUED)
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
        dead.append(run.run_id)
    _free_slots_of_ended_runs(instance)
    return dead


@contextmanager
def failing_dead_runs(instance: dg.DagsterInstance, tell: Callable[[str], None]) -> Iterator[None]:
    """Looks for dead runs again and again, and tells of each by its id: a step that waits for a run that is killed would wait
    for ever."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(SECONDS_BETWEEN_LOOKS):
            try:
                for run_id in fail_dead_runs(instance):
                    tell(run_id)
            except Exception as error:  # a history that is locked or away is asked again
                logging.getLogger(__name__).warning("dead runs cannot be looked for now (%s)", type(error).__name__)

    thread = threading.Thread(target=look, name="dead-runs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _is_dead(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether the process of a launched run is gone. False where its history names none yet: Dagster fails those itself."""
    for entry in reversed(instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)):
        match = STARTED_AS.match(entry.dagster_event.message or "")
        if match is not None:
            return not has_run_since(int(match[1]), entry.timestamp)
    return False


def _free_slots_of_ended_runs(instance: dg.DagsterInstance) -> None:
    """Frees pool slots that ended runs still hold; later steps would wait for them for ever."""
    storage = instance.event_log_storage
    for pool in storage.get_concurrency_keys():
        info = storage.get_concurrency_info(pool)
        for run_id in info.active_run_ids | info.pending_run_ids | info.assigned_run_ids:
            run = instance.get_run_by_id(run_id)
            if run is None or run.is_finished:
                storage.free_concurrency_slots_for_run(run_id)
