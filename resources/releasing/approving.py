"""Decisions of a person on an endpoint, as `millrace approve` and the jobs of the Dagster UI take them.

    done = approve_release(lake, directory, by, seen)        # done.aliases is None while more people have to approve
    check_digest(directory, "3f2a91c0")                      # raises if the person read another release than this one

Both ways record the same entries in the endpoint's log, under the same policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from resources.lake import Lake
from resources.releasing.approvals import Approvals, approvals_of, approve, is_approved
from resources.releasing.endpoints import Aliases, Endpoint
from resources.releasing.release import ReleaseError
from resources.releasing.signature import Signature
from resources.releasing.subject import subject_of

SHORTEST_DIGEST = 6


@dataclass(frozen=True)
class Approved:
    """An approval that was recorded. aliases: the endpoint's aliases after it moved; None if more people have to approve.
    again: whether enough people had approved the release before."""

    aliases: Aliases | None
    approvals: Approvals
    again: bool


def approve_release(lake: Lake, directory: Path, by: Signature, seen: Aliases | None = None) -> Approved:
    """Records an approval and, if enough people approved the release, makes it champion. Raises as `approve` and
    `Endpoint.promote` do."""
    again = is_approved(lake, directory)
    approve(lake, directory, by, seen)
    approvals = approvals_of(lake, directory)
    if approvals.missing:
        return Approved(None, approvals, again)
    return Approved(Endpoint(lake, directory.parent.name).promote(subject_of(directory), by, seen), approvals, again)


def check_digest(directory: Path, read: str) -> None:
    """Raises ReleaseError unless `read`, the beginning of the digest that a person read, is that of the release."""
    digest = subject_of(directory).digest
    if len(read) < SHORTEST_DIGEST:
        raise ReleaseError(f"{read!r} is too short for a digest: give at least {SHORTEST_DIGEST} characters, or leave it out")
    if not digest.startswith(read.lower()):
        raise ReleaseError(f"release {directory.name} has the digest {digest[:12]}, and you read {read[:12]!r}: read its "
                           "approval page again before you decide")
