"""Dagster's daemon on a lake: `python -m pipelines.running.daemon WORKSPACE.yaml`, with DAGSTER_HOME and MILLRACE_LAKE. It also
fails launched runs whose process is gone, which Dagster's launcher cannot see and would leave STARTED for ever, so that they
start again from the failed step (run_retries in dagster.yaml); and it asks again for retries that were lost."""

import logging
import os
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points
from pathlib import Path

import dagster as dg

from pipelines.running.instance import fail_dead_runs, open_instance, set_pools
from resources.lake import LakeLayout
from resources.launching import postgres

EVERY_S = 20.0
OTHER_MACHINE_S = 180.0
"""Seconds after which the runs of another machine's daemon have ended, since it lost the database's lock."""


def watch_runs(stop: threading.Event, every_s: float = EVERY_S) -> None:
    """Fails dead runs of the instance in DAGSTER_HOME now and then, until `stop` is set. A database that is away is asked
    again."""
    log = logging.getLogger("dagster.daemon.millrace")
    lost = LostRetries()
    began_s, waits_s = time.monotonic(), OTHER_MACHINE_S if postgres.url() else 0.0
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
    with open_instance(LakeLayout(Path(os.environ["MILLRACE_LAKE"]))) as instance:
        set_pools(instance)
    threading.Thread(target=watch_runs, args=(threading.Event(),), name="dead-runs", daemon=True).start()
    [daemon] = entry_points(group="console_scripts", name="dagster-daemon")
    sys.argv = ["dagster-daemon", "run", "-w", sys.argv[1]]
    sys.exit(daemon.load()())


COULD_NOT, RETRIED_AS, WILL_RETRY, ASKED = (
    "Failed to retry run",
    "dagster/auto_retry_run_id",
    "dagster/will_retry",
    "millrace/retry_asked_again",
)
TRIED_AGAIN = "Its code location could not be loaded when it was to be started again: that is tried once more."
MOST, WITHIN = 20, timedelta(days=1)
"""How often a run is tried again, and how long after it failed."""


class LostRetries:
    """Remembers which runs it need not look at again."""

    def __init__(self) -> None:
        self._others: set[str] = set()

    def look(self, instance: dg.DagsterInstance) -> list[str]:
        """Asks for the retries that were lost; returns the ids of their runs."""
        asked = []
        statuses = [dg.DagsterRunStatus.FAILURE]
        failed = dg.RunsFilter(statuses=statuses, tags={WILL_RETRY: "false"}, updated_after=datetime.now(UTC) - WITHIN)
        for run in instance.get_runs(failed, limit=200):
            if run.run_id in self._others:
                continue
            times = int(run.tags.get(ASKED, "0"))
            if RETRIED_AS in run.tags or times >= min(MOST, _times_given_up(instance, run.run_id)):
                self._others.add(run.run_id)
                continue
            instance.add_run_tags(run.run_id, {ASKED: str(times + 1)})
            instance.report_run_failed(run, message=TRIED_AGAIN)
            asked.append(run.run_id)
        return asked


def _times_given_up(instance: dg.DagsterInstance, run_id: str) -> int:
    events = instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    return sum(entry.dagster_event.message == COULD_NOT for entry in events)


if __name__ == "__main__":
    main()
