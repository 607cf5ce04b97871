"""The release whose reference window traffic is compared with: the champion of the endpoint."""

from dataclasses import dataclass
from datetime import date

from resources.endpoints import Endpoint, EndpointError, EndpointLogError
from resources.lake import LakeLayout
from resources.manifests import ManifestError, read_manifest


@dataclass(frozen=True)
class ServedRelease:
    """The release that traffic is compared for."""

    name: str = ""
    """Its version."""
    released_on: date | None = None
    """The day on which it was made, before which its reference window ends."""
    problem: str = ""
    """Why it is not known; then the first full window of the logs is the reference, as without a release."""


NO_RELEASE = ServedRelease()


def served_release(lake: LakeLayout, workload: str) -> ServedRelease:
    """The champion of the workload's endpoint; NO_RELEASE before there is one."""
    try:
        _, aliases = Endpoint(lake, workload).seen()
        if aliases.champion is None:
            return NO_RELEASE
        released_at = read_manifest(lake.artefacts("release") / workload / aliases.champion).created_at
    except (EndpointError, EndpointLogError, ManifestError) as error:
        return ServedRelease(problem=f"the served release cannot be read ({error})")
    return ServedRelease(aliases.champion, released_at.date())
