"""Where a run comes from: a code location that the daemon has loaded, or `millrace run`, which only names its own.

Dagster has no public name for origins: this is the one file that imports its private ones.
"""

import dagster as dg
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin


def origin_of(location: str, job: str) -> RemoteJobOrigin:
    """The origin of a run of the command line, by the name of its recipe's code location; Dagster tags the run after it."""
    return RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), "__repository__").get_job_origin(job)


def is_launched(run: dg.DagsterRun) -> bool:
    """Whether the daemon launched a run, from a code location that it has loaded."""
    origin = run.remote_job_origin
    return origin is not None and not isinstance(origin.repository_origin.code_location_origin, RegisteredCodeLocationOrigin)
