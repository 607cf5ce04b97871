"""Dagster's daemon on a lake, with what Dagster leaves out: it fails launched runs whose process is gone, and asks again for
retries that were lost.

    python -m pipelines.running.daemon WORKSPACE.yaml          # with DAGSTER_HOME and MILLRACE_LAKE

Dagster's own launcher cannot say whether a run's process lives: after a crash of the code server its runs would be STARTED
for ever. Failed that way, they are started again from the failed step (run_retries in dagster.yaml). `millrace up` and
`millrace ui` run this, one on each instance (pipelines/keeping/daemon_lock.py).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from importlib.metadata import entry_points
from pathlib import Path

import dagster as dg

from pipelines.running.instance import fail_dead_runs, open_instance, set_pools
from pipelines.running.lost_retries import LostRetries
from resources.lake import Lake
from resources.launching.postgres import postgres_url

EVERY_S = 20.0
OTHER_MACHINE_S = 180.0
"""Seconds after which the runs of another machine's daemon have ended, since it lost the database's lock."""


def watch_runs(stop: threading.Event, every_s: float = EVERY_S) -> None:
    """Fails dead runs of the instance in DAGSTER_HOME now and then, until `stop` is set. A database that is away is asked
    again."""
    log = logging.getLogger("dagster.daemon.millrace")
    lost = LostRetries()
    began_s, waits_s = time.monotonic(), OTHER_MACHINE_S if postgres_url() else 0.0
    while True:
        try:
            with dg.DagsterInstance.get() as instance:
                for run_id in fail_dead_runs(instance, launched=time.monotonic() - began_s >= waits_s):
                    log.warning("the process of run %s is gone: its work continues in a new run", run_id)
                for run_id in lost.look(instance):
                    log.warning("run %s could not be started again when it failed: it is tried once more", run_id)
        except Exception as error:
            log.warning("dead runs cannot be looked for now (%s)", type(error).__name__)
        if stop.wait(every_s):
            return


def main() -> None:
    with open_instance(Lake(Path(os.environ["MILLRACE_LAKE"]))) as instance:
        set_pools(instance)
    threading.Thread(target=watch_runs, args=(threading.Event(),), name="dead-runs", daemon=True).start()
    [daemon] = entry_points(group="console_scripts", name="dagster-daemon")
    sys.argv = ["dagster-daemon", "run", "-w", sys.argv[1]]
    sys.exit(daemon.load()())


if __name__ == "__main__":
    main()
