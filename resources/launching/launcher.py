"""The launcher interface: runs jobs in workers, here or elsewhere.

A job is the same JSON everywhere (`model_ops.jobs.job.Job`); local_launcher.py runs it on this machine. Another launcher (a
cluster, a queue) gives the workshop the same two methods and raises the same errors.
"""

from typing import Any, Protocol

import dagster as dg

from model_ops.jobs import Job


class Launcher(Protocol):
    """Runs jobs, one after another."""

    def run(self, job: Job, context: dg.AssetExecutionContext | None = None) -> dict[str, Any]:
        """Runs a job to its end and returns its metrics; its results are in `job.output`. Progress is reported to `context`.

        Raises WorkerError if the inputs are wrong or the worker dies, WorkerStopped if it was stopped: then its checkpoints
        are kept, and the same job continues from them.
        """
        ...

    def close(self) -> None:
        """Ends workers that wait for more jobs."""
        ...


class WorkerError(Exception):
    """A worker refused its inputs, or died. The message is the worker's."""


class WorkerKilled(WorkerError):
    """A worker was killed by a signal from outside."""


class WorkerStopped(Exception):
    """A worker saved its state and stopped because it was asked to."""
