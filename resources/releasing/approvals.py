"""Approvals: decisions of people, or of a recipe, on releases. Each is an entry of the endpoint's log.

    approve(lake, directory, sign("answers read"))      # re-checked first; a second approval is a second entry
    withdraw(lake, directory, sign("wrong prices"))
    is_approved(lake, directory)                        # enough people approved exactly these files
    approvals = approvals_of(lake, directory)           # approvals.counted, approvals.missing, approvals.refused

An approval moves no alias: `Endpoint.promote` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from model_ops.wording import counted as number_of
from resources.artefacts.manifest import read_manifest
from resources.lake import Lake
from resources.releasing.closed_times import closed_by
from resources.releasing.endpoint_log import Entry, signer_of
from resources.releasing.endpoints import Aliases, Endpoint
from resources.releasing.parts import superseded
from resources.releasing.recheck import recheck
from resources.releasing.release import ReleaseError, read_release
from resources.releasing.signature import Signature
from resources.releasing.subject import subject_of
from resources.signing.envelope import EnvelopeError
from resources.signing.keys import TrustedKey, TrustedKeys, trusted_keys


def approve(lake: Lake, directory: Path, by: Signature, seen: Aliases | None = None) -> None:
    """Records an approval. Raises ReleaseError if a re-check fails, a newer run has superseded the release, or the recipe takes
    no approval at this time, EndpointError if the endpoint changed since it was `seen`.

    The champion can be approved again even after the next training has begun; this changes no alias.
    """
    if closed := closed_now(directory):
        raise ReleaseError(f"release {directory.name} cannot be approved now: {closed}. Approve it at another time; a rollback "
                           "is always possible")
    endpoint = _endpoint(lake, directory)
    serves = endpoint.read().champion == directory.name
    if problems := recheck(lake, directory):
        raise ReleaseError(f"release {directory.name} cannot be approved: " + "; ".join(problems))
    if not serves and (older := superseded(lake, directory)):
        raise ReleaseError(
            f"release {directory.name} cannot be approved: it is older than what the lake holds now ({'; '.join(older)}). "
            "Approve the newest release, or run the recipe again to make one"
        )
    if not serves and (newer := _newer_candidate(lake, directory, endpoint.read())):
        raise ReleaseError(f"release {directory.name} cannot be approved: {newer} is a newer candidate. Approve {newer}, or "
                           f"reject it first: millrace reject {newer}")
    endpoint.decide("approved", subject_of(directory), by, seen)


def _newer_candidate(lake: Lake, directory: Path, aliases: Aliases) -> str:
    """The version of a candidate that was made after this release; "" if there is none."""
    other = lake.artefacts("release") / aliases.workload / (aliases.candidate or "")
    if aliases.candidate in (None, directory.name) or not (other / "manifest.json").exists():
        return ""
    newer = read_manifest(other).created_at > read_manifest(directory).created_at
    return aliases.candidate if newer and aliases.candidate else ""


def withdraw(lake: Lake, directory: Path, by: Signature, seen: Aliases | None = None) -> None:
    """Withdraws approvals, or refuses a candidate, so that no later run of the graph serves this release automatically. Raises
    EndpointError for the champion, which must be rolled back instead, and if the endpoint changed since it was `seen`."""
    _endpoint(lake, directory).decide("withdrawn", subject_of(directory), by, seen)


def closed_now(directory: Path) -> str:
    """Why no approval is taken at this time; "" if it is."""
    policy = read_release(directory).policy
    schedule = closed_by(policy.closed, policy.timezone, datetime.now(UTC))
    return f"release.closed of its recipe has {schedule!r} ({policy.timezone})" if schedule else ""


@dataclass(frozen=True)
class Approvals:
    """The approvals of a release since it was last withdrawn. counted: one entry per person. keys: the name of the trusted key
    of each, where keys are trusted. missing: how many more people have to approve. refused: why an entry does not count, one
    sentence each."""

    counted: list[Entry]
    keys: list[str]
    missing: int
    refused: list[str]

    @property
    def people(self) -> list[str]:
        """Who approved: the name that each gave, and the key that signed it."""
        if not self.keys:
            return [entry.by for entry in self.counted]
        return [f"{entry.by} (key {key})" for entry, key in zip(self.counted, self.keys, strict=True)]

    @property
    def needed(self) -> str:
        """Who is missing, in words; "" if nobody is."""
        if not self.missing:
            return ""
        return "one more person" if self.missing == 1 and self.counted else (
            "a person" if self.missing == 1 else f"{self.missing} {'more ' if self.counted else ''}people")


def approvals_of(lake: Lake, directory: Path) -> Approvals:
    """The approvals of exactly these files.

    Where keys are trusted (MILLRACE_TRUSTED_KEYS), an approval counts if one of those that approve signed it, and a person is a
    key; otherwise a person is a name. Raises KeyProblemError for keys that cannot be read.
    """
    subject, trusted, today = subject_of(directory), trusted_keys(), date.today()
    counted: dict[str, tuple[Entry, str]] = {}
    refused = []
    for entry in _decisions(lake, directory):
        if entry.action != "approved":
            counted = {}
        elif entry.digest == subject.digest:
            try:
                key = None if trusted is None else _approving_key(entry, trusted, today)
                counted[entry.by if key is None else key.id] = entry, key.name if key else ""
            except EnvelopeError as error:
                refused.append(f"the approval by {entry.by} on {entry.at:%Y-%m-%d %H:%M} does not count: {error}")
    keys = [name for _, name in counted.values() if name]
    missing = max(0, read_release(directory).policy.people - len(counted))
    return Approvals([entry for entry, _ in counted.values()], keys, missing, refused)


def is_approved(lake: Lake, directory: Path) -> bool:
    """Whether enough people approved exactly this release (by digest), and none withdrew it since."""
    return approvals_of(lake, directory).missing == 0


def was_decided(lake: Lake, directory: Path) -> bool:
    """Whether a person approved or withdrew this release; then it is not approved automatically."""
    return bool(_decisions(lake, directory))


def approved_by(lake: Lake, directory: Path) -> Signature:
    """Who gave the last approval, and why. Raises ReleaseError if there are not enough."""
    approvals = approvals_of(lake, directory)
    if approvals.missing:
        said = "; ".join([f"{number_of(approvals.missing, 'more approval')} needed: millrace approve {directory.name}",
                          *approvals.refused])
        raise ReleaseError(f"release {directory.name} is not approved, {said}")
    last = approvals.counted[-1]
    return Signature(last.by, last.identity_from, last.reason)


def _approving_key(entry: Entry, trusted: TrustedKeys, today: date) -> TrustedKey:
    """The key that signed an approval. Raises EnvelopeError if it may not approve."""
    key = signer_of(entry, trusted, today)
    if not key.approves:
        raise EnvelopeError(f"its key {key.name} may sign releases, not approve them ({trusted.place})")
    return key


def _decisions(lake: Lake, directory: Path) -> list[Entry]:
    return [
        entry for entry in _endpoint(lake, directory).entries()
        if (entry.action in ("approved", "withdrawn") and entry.release == directory.name)
        or (entry.action == "rolled back" and entry.replaces == directory.name)
    ]


def _endpoint(lake: Lake, directory: Path) -> Endpoint:
    return Endpoint(lake, directory.parent.name)
