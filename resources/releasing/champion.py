"""The champion that a new model is compared with: the last release that the endpoint served with other weights.

    found = champion_to_beat(lake, "math-tutor", served_manifest)      # None: no other model was served yet

If the served model is itself the champion's, the champion before it is taken. So a run after an approval compares with the same
model as the run before it, and makes nothing again.
"""

from __future__ import annotations

from dataclasses import dataclass

from resources.artefacts.manifest import Manifest, ManifestError, read_manifest
from resources.lake import Lake
from resources.releasing.endpoint_log import EndpointLogError
from resources.releasing.endpoints import Endpoint, EndpointError
from resources.releasing.release import ReleaseError, read_release
from resources.releasing.rollback import champions_before


@dataclass(frozen=True)
class Champion:
    """A release and its target model; without a model, `problem` says why it cannot be compared with."""

    release: str
    target: Manifest | None = None
    problem: str = ""


def champion_to_beat(lake: Lake, workload: str, served: Manifest) -> Champion | None:
    """The last champion whose target has another digest than `served`; None if there is none."""
    try:
        entries, aliases = Endpoint(lake, workload).seen()
    except (EndpointError, EndpointLogError) as error:
        return Champion("", problem=str(error))
    champions = champions_before(entries)
    if aliases.champion and champions[-1:] != [aliases.champion]:
        champions.append(aliases.champion)
    for version in reversed(champions):
        try:
            part = read_release(lake.artefacts("release") / workload / version).target
            if part.digest == served.digest:
                continue
            target = read_manifest(lake.root / part.path)
        except (ReleaseError, ManifestError) as error:
            return Champion(version, problem=f"the champion's files cannot be read: {error}")
        if target.digest != part.digest:
            return Champion(version, problem=f"{part.path} is no longer the model that release {version} serves")
        return Champion(version, target)
    return None
