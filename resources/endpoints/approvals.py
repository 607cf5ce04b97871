"""Approvals: decisions of people, or of a recipe, on releases. Each is an entry of the endpoint's log.

`millrace approve` and the jobs of the Dagster UI call these, so both record the same entries under the same policies. `by` is
who decides; `seen` are the endpoint's aliases that the decision was based on: if they changed since, nothing is recorded.
"""

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from model_ops.jobs import counted as number_of
from resources.endpoints.actor import Actor
from resources.endpoints.endpoint_log import EndpointLogEntry, decisions_on, signer_of
from resources.endpoints.endpoints import Aliases, Endpoint
from resources.endpoints.release_checks import recheck, superseded
from resources.lake import LakeLayout
from resources.manifests import read_manifest
from resources.releases import ReleaseError, ReleaseRef, read_release
from resources.signing import EnvelopeError, TrustedKey, TrustedKeys, trusted_keys

SHORTEST_DIGEST = 6


@dataclass(frozen=True)
class Approvals:
    """The approvals of a release since it was last withdrawn."""

    counted: list[EndpointLogEntry]
    """One entry for each person."""
    keys: list[str]
    """The name of each person's trusted key, where keys are trusted."""
    missing: int
    """How many more people have to approve."""
    refused: list[str]
    """Why an entry does not count, one sentence each."""
    decided: bool
    """A person, or the recipe, approved or withdrew the release: the recipe does not approve it again by itself."""

    @property
    def withdrawn(self) -> bool:
        """Whether the last decision was a withdrawal or a rollback."""
        return self.decided and not self.counted and not self.refused

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
        return (
            "one more person"
            if self.missing == 1 and self.counted
            else ("a person" if self.missing == 1 else f"{self.missing} {'more ' if self.counted else ''}people")
        )


@dataclass(frozen=True)
class ApprovalResult:
    """An approval that was recorded."""

    aliases: Aliases | None
    """The endpoint's aliases after it moved; None if more people have to approve."""
    approvals: Approvals
    again: bool
    """Enough people had approved the release before."""


def approve_release(lake: LakeLayout, directory: Path, by: Actor, seen: Aliases | None = None) -> ApprovalResult:
    """Records an approval and, if enough people approved the release, makes it champion. Raises as `approve` and
    `Endpoint.promote` do."""
    again = approvals_of(lake, directory).missing == 0
    approve(lake, directory, by, seen)
    approvals = approvals_of(lake, directory)
    if approvals.missing:
        return ApprovalResult(None, approvals, again)
    return ApprovalResult(_endpoint(lake, directory).promote(ReleaseRef.of(directory), by, seen), approvals, again)


def approvals_of(lake: LakeLayout, directory: Path) -> Approvals:
    """The approvals of exactly these files.

    Where keys are trusted (MILLRACE_TRUSTED_KEYS), an approval counts if one of those that approve signed it, and a person is a
    key; otherwise a person is a name. Raises KeyProblemError for keys that cannot be read.
    """
    ref, people = ReleaseRef.of(directory), read_release(directory).policy.people
    decisions = decisions_on(_endpoint(lake, directory).entries(), ref.release)
    trusted, today = trusted_keys(), date.today()
    counted: dict[str, tuple[EndpointLogEntry, str]] = {}
    refused = []
    for entry in decisions:
        if entry.action != "approved":
            counted = {}
        elif entry.digest == ref.digest:
            try:
                key = None if trusted is None else _approving_key(entry, trusted, today)
                counted[entry.by if key is None else key.id] = entry, key.name if key else ""
            except EnvelopeError as error:
                refused.append(f"the approval by {entry.by} on {entry.at:%Y-%m-%d %H:%M} does not count: {error}")
    keys = [name for _, name in counted.values() if name]
    missing = max(0, people - len(counted))
    return Approvals([entry for entry, _ in counted.values()], keys, missing, refused, decided=bool(decisions))


def approve(lake: LakeLayout, directory: Path, by: Actor, seen: Aliases | None = None) -> None:
    """Records an approval. Raises ReleaseError if a re-check fails, a newer run has superseded the release, or the recipe takes
    no approval at this time, EndpointError if the endpoint changed since it was `seen`.

    The champion can be approved again even after the next training has begun; this changes no alias.
    """
    if closed := read_release(directory).policy.closed_now():
        raise ReleaseError(
            f"release {directory.name} cannot be approved now: {closed}. Approve it at another time; a rollback "
            "is always possible"
        )
    endpoint = _endpoint(lake, directory)
    serves = endpoint.read().champion == directory.name
    problems, older = recheck(lake, directory), [] if serves else superseded(lake, directory)
    if problems:
        raise ReleaseError(f"release {directory.name} cannot be approved: " + "; ".join(problems))
    if older:
        raise ReleaseError(
            f"release {directory.name} cannot be approved: it is older than what the lake holds now ({'; '.join(older)}). "
            "Approve the newest release, or run the recipe again to make one"
        )
    if not serves and (newer := _newer_candidate(lake, directory, endpoint.read())):
        raise ReleaseError(
            f"release {directory.name} cannot be approved: {newer} is a newer candidate. Approve {newer}, or "
            f"reject it first: millrace reject {newer}"
        )
    endpoint.decide("approved", ReleaseRef.of(directory), by, seen)


def _newer_candidate(lake: LakeLayout, directory: Path, aliases: Aliases) -> str:
    """The version of a candidate that was made after this release; "" if there is none."""
    other = lake.artefacts("release") / aliases.workload / (aliases.candidate or "")
    if aliases.candidate in (None, directory.name) or not (other / "manifest.json").exists():
        return ""
    newer = read_manifest(other).created_at > read_manifest(directory).created_at
    return aliases.candidate if newer and aliases.candidate else ""


def withdraw(lake: LakeLayout, directory: Path, by: Actor, seen: Aliases | None = None) -> None:
    """Withdraws approvals, or refuses a candidate, so that no later run of the graph serves this release automatically. Raises
    EndpointError for the champion, which must be rolled back instead, and if the endpoint changed since it was `seen`."""
    _endpoint(lake, directory).decide("withdrawn", ReleaseRef.of(directory), by, seen)


def promote_to(lake: LakeLayout, directory: Path, alias: str, by: Actor, seen: Aliases | None = None) -> Aliases:
    """Makes a further alias, such as canary or eu, name a release. Raises ReleaseError if it is not approved or a re-check
    fails, EndpointError if the alias cannot be moved."""
    approved_by(lake, directory)
    if problems := recheck(lake, directory):
        raise ReleaseError(f"release {directory.name} is not served as {alias}: " + "; ".join(problems))
    return _endpoint(lake, directory).name(alias, ReleaseRef.of(directory), by, seen)


def approved_by(lake: LakeLayout, directory: Path) -> Actor:
    """Who gave the last approval, and why. Raises ReleaseError if there are not enough."""
    approvals = approvals_of(lake, directory)
    if approvals.missing:
        said = "; ".join(
            [f"{number_of(approvals.missing, 'more approval')} needed: millrace approve {directory.name}", *approvals.refused]
        )
        raise ReleaseError(f"release {directory.name} is not approved, {said}")
    last = approvals.counted[-1]
    return Actor(last.by, last.identity_from, last.reason)


def check_digest(directory: Path, read: str) -> None:
    """Raises ReleaseError unless `read`, the beginning of the digest that a person read, is that of the release."""
    digest = ReleaseRef.of(directory).digest
    if len(read) < SHORTEST_DIGEST:
        raise ReleaseError(f"{read!r} is too short for a digest: give at least {SHORTEST_DIGEST} characters, or leave it out")
    if not digest.startswith(read.lower()):
        raise ReleaseError(
            f"release {directory.name} has the digest {digest[:12]}, and you read {read[:12]!r}: read its "
            "approval page again before you decide"
        )


def _approving_key(entry: EndpointLogEntry, trusted: TrustedKeys, today: date) -> TrustedKey:
    """The key that signed an approval. Raises EnvelopeError if it may not approve."""
    key = signer_of(entry, trusted, today)
    if not key.approves:
        raise EnvelopeError(f"its key {key.name} may sign releases, not approve them ({trusted.place})")
    return key


def _endpoint(lake: LakeLayout, directory: Path) -> Endpoint:
    return Endpoint(lake, directory.parent.name)
