"""Runs work in processes of its own and reads what became of it. local_launcher.py starts workers (model_ops/worker.py) on this
machine, keeps one warm, and has the interface of a launcher for another cluster; processes.py starts and recognises processes
and shares accelerators between them.
run_history.py reads Dagster's history, in SQLite or Postgres (postgres.py), without importing Dagster. progress.py relays
events to the terminal. Start with local_launcher.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.launching import postgres
    from resources.launching.local_launcher import Launcher, LocalLauncher, WorkerError, is_launched, origin_of
    from resources.launching.processes import (
        child_environment,
        devices,
        has_run_since,
        is_same_process,
        killed_sentence,
        memory_sentence,
        python_module,
        stamp_of,
        this_process,
    )
    from resources.launching.progress import PhasePace, relay
    from resources.launching.run_history import (
        HOST_TAG,
        JOB_TAG,
        LOCATION_TAG,
        PROCESS_TAG,
        REQUEST,
        RUN_TAG,
        SUBMITTED,
        RunRecord,
        home_of,
        is_copied,
        runs,
        runs_in_progress,
        seconds_of_steps,
        steps_underway,
    )

__getattr__, __dir__, __all__ = door(__name__, __file__)
