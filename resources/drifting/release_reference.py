"""The release whose reference window traffic is compared with: the champion of the endpoint.

    served = served_release(lake, "math-tutor")        # ServedRelease("3f2a...", made=date(2026, 7, 1)), or NO_RELEASE
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from resources.artefacts.manifest import ManifestError, read_manifest
from resources.lake import Lake
from resources.releasing.endpoint_log import EndpointLogError
from resources.releasing.endpoints import Endpoint, EndpointError


@dataclass(frozen=True)
class ServedRelease:
    """name: its version. made: the day on which it was made, before which its reference window ends. problem: why it is not
    known; then the first full window of the logs is the reference, as without a release."""

    name: str = ""
    made: date | None = None
    problem: str = ""


NO_RELEASE = ServedRelease()


def served_release(lake: Lake, workload: str) -> ServedRelease:
    """The champion of the workload's endpoint; NO_RELEASE before there is one."""
    try:
        _, aliases = Endpoint(lake, workload).seen()
        if aliases.champion is None:
            return NO_RELEASE
        made = read_manifest(lake.artefacts("release") / workload / aliases.champion).created_at
    except (EndpointError, EndpointLogError, ManifestError) as error:
        return ServedRelease(problem=f"the served release cannot be read ({error})")
    return ServedRelease(aliases.champion, made.date())
