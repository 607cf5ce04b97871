"""Further aliases: an approved release that canary, eu or another alias of the endpoint is to name.

    promote_to(lake, directory, "canary", by, seen)
"""

from __future__ import annotations

from pathlib import Path

from resources.lake import Lake
from resources.releasing.approvals import approved_by
from resources.releasing.endpoints import Aliases, Endpoint
from resources.releasing.recheck import recheck
from resources.releasing.release import ReleaseError
from resources.releasing.signature import Signature
from resources.releasing.subject import subject_of


def promote_to(lake: Lake, directory: Path, alias: str, by: Signature, seen: Aliases | None = None) -> Aliases:
    """Makes the alias name the release. Raises ReleaseError if it is not approved or a re-check fails, EndpointError if the
    alias cannot be moved."""
    approved_by(lake, directory)
    if problems := recheck(lake, directory):
        raise ReleaseError(f"release {directory.name} is not served as {alias}: " + "; ".join(problems))
    return Endpoint(lake, directory.parent.name).name(alias, subject_of(directory), by, seen)
