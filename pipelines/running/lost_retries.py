"""Runs that the daemon was to start again and could not, because their code location was being loaded at that moment.

    again = LostRetries()
    again.look(instance)          # ids of the runs that are now tried again

Dagster's daemon then writes `Failed to retry run` into the run's history and never comes back to it. A further event of its
failure makes the daemon look at the run once more.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import dagster as dg

COULD_NOT, RETRIED_AS, WILL_RETRY, ASKED = ("Failed to retry run", "dagster/auto_retry_run_id", "dagster/will_retry",
                                            "millrace/retry_asked_again")
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
        failed = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], tags={WILL_RETRY: "false"},
                               updated_after=datetime.now(UTC) - WITHIN)
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
