"""Approvals: decisions of people, or of a recipe, on releases. Each is an entry of the endpoint's log.

    approve(lake, directory, sign("answers read"))      # re-checked first; a second approval is a second entry
    withdraw(lake, directory, sign("wrong prices"))
    is_approved(lake, directory)                        # the last decision on exactly these files

An approval moves no alias: `Endpoint.promote` does.
"""

from __future__ import annotations

from pathlib import Path

from resources.lake import Lake
from resources.releasing.endpoint_log import Entry
from resources.releasing.endpoints import Aliases, Endpoint, standing
from resources.releasing.parts import superseded
from resources.releasing.release import ReleaseError, recheck
from resources.releasing.signature import Signature
from resources.releasing.subject import subject_of


def approve(lake: Lake, directory: Path, by: Signature, seen: Aliases | None = None) -> None:
    """Records an approval. Raises ReleaseError if a re-check fails or a newer run has superseded the release, EndpointError if
    the endpoint changed since it was `seen`.

    The champion can be approved again even after the next training has begun; this changes no alias.
    """
    endpoint = _endpoint(lake, directory)
    serves = endpoint.read().champion == directory.name
    if problems := recheck(lake, directory):
        raise ReleaseError(f"release {directory.name} cannot be approved: " + "; ".join(problems))
    if not serves and (older := superseded(lake, directory)):
        raise ReleaseError(
            f"release {directory.name} cannot be approved: it is older than what the lake holds now ({'; '.join(older)}). "
            "Approve the newest release, or run the recipe again to make one"
        )
    endpoint.decide("approved", subject_of(directory), by, seen)


def withdraw(lake: Lake, directory: Path, by: Signature, seen: Aliases | None = None) -> None:
    """Withdraws approvals, or refuses a candidate, so that no later run of the graph serves this release automatically. Raises
    EndpointError for the champion, which must be rolled back instead, and if the endpoint changed since it was `seen`."""
    _endpoint(lake, directory).decide("withdrawn", subject_of(directory), by, seen)


def is_approved(lake: Lake, directory: Path) -> bool:
    """Whether the last decision on exactly this release (by digest) is an approval."""
    return standing(_endpoint(lake, directory).entries(), subject_of(directory)) == "approved"


def was_decided(lake: Lake, directory: Path) -> bool:
    """Whether a person approved or withdrew this release; then it is not approved automatically."""
    return bool(_decisions(lake, directory))


def approved_by(lake: Lake, directory: Path) -> Signature:
    """Who gave the last approval, and why. Raises ReleaseError if there is none."""
    approvals = [entry for entry in _decisions(lake, directory) if entry.action == "approved"]
    if not approvals:
        raise ReleaseError(f"release {directory.name} is not approved: millrace approve {directory.name}")
    return Signature(approvals[-1].by, approvals[-1].identity_from, approvals[-1].reason)


def _decisions(lake: Lake, directory: Path) -> list[Entry]:
    return [
        entry for entry in _endpoint(lake, directory).entries()
        if (entry.action in ("approved", "withdrawn") and entry.release == directory.name)
        or (entry.action == "rolled back" and entry.replaces == directory.name)
    ]


def _endpoint(lake: Lake, directory: Path) -> Endpoint:
    return Endpoint(lake, directory.parent.name)
