"""Approvals: decisions of people, or of a recipe, on releases. Each is an entry of the endpoint's log.

`millrace approve` and the jobs of the Dagster UI call these, so both record the same entries under the same policies. `by` is
who decides; `seen` are the endpoint's aliases that the decision was based on: if they changed since, nothing is recorded."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from model_ops.jobs import counted as number_of
from resources.artefacts import outdated_behind
from resources.endpoints.endpoint_log import Actor, EndpointLogEntry, decisions_on, signer_of
from resources.endpoints.endpoints import Aliases, Endpoint, EndpointError, standing
from resources.lake import LakeLayout
from resources.manifests import Input, Manifest, ManifestError, file_problems, read_manifest
from resources.releases import (
    ERASED_ROWS,
    GateResult,
    Release,
    ReleaseError,
    ReleaseRef,
    adapter_problems,
    erased_rows,
    gate_problem,
    read_release,
)
from resources.signing import (
    TRUSTED_KEYS,
    EnvelopeError,
    SignatureRefusedError,
    TrustedKey,
    TrustedKeys,
    check_signature,
    trusted_keys,
)

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
    withdrawn: bool
    """The last decision was a withdrawal or a rollback."""

    @property
    def people(self) -> list[str]:
        """Who approved: the name that each gave, and the key that signed it."""
        if not self.keys:
            return [entry.by for entry in self.counted]
        return [f"{entry.by} (key {key})" for entry, key in zip(self.counted, self.keys, strict=True)]

    @property
    def needed(self) -> str:
        """Who is missing, in words; "" if nobody is."""
        if self.missing == 1:
            return "one more person" if self.counted else "a person"
        return f"{self.missing} {'more ' if self.counted else ''}people" if self.missing else ""


@dataclass(frozen=True)
class ApprovalResult:
    """An approval that was recorded."""

    aliases: Aliases | None
    """The endpoint's aliases after it moved; None if more people have to approve."""
    approvals: Approvals
    again: bool
    """Enough people had approved the release before."""


def approve_release(lake: LakeLayout, directory: Path, by: Actor, seen: Aliases | None = None) -> ApprovalResult:
    """Records an approval and, if enough people approved the release, makes it champion. Raises as `record_approval` and
    `Endpoint.promote` do."""
    again = approvals_of(lake, directory).missing == 0
    record_approval(lake, directory, by, seen)
    approvals = approvals_of(lake, directory)
    if approvals.missing:
        return ApprovalResult(None, approvals, again)
    return ApprovalResult(_endpoint(lake, directory).promote(ReleaseRef.of(directory), by, seen), approvals, again)


def approvals_of(lake: LakeLayout, directory: Path) -> Approvals:
    """The approvals of exactly these files. Where keys are trusted (MILLRACE_TRUSTED_KEYS), an approval counts if one of those
    that approve signed it, and a person is a key; otherwise a person is a name. Raises KeyProblemError for keys that cannot be
    read."""
    ref, people = ReleaseRef.of(directory), read_release(directory).policy.people
    decisions = decisions_on(_endpoint(lake, directory).entries(), ref.version)
    trusted, today = trusted_keys(), date.today()
    counted: dict[str, tuple[EndpointLogEntry, str]] = {}
    refused = list[str]()
    for entry in decisions:
        if entry.action != "approved":
            counted, refused = {}, []
        elif entry.digest == ref.digest:
            try:
                key = None if trusted is None else _approving_key(entry, trusted, today)
                counted[entry.by if key is None else key.id] = entry, key.name if key else ""
            except EnvelopeError as error:
                refused.append(f"the approval by {entry.by} on {entry.at:%Y-%m-%d %H:%M} does not count: {error}")
    keys = [name for _, name in counted.values() if name]
    missing = max(0, people - len(counted))
    withdrawn = bool(decisions) and decisions[-1].action != "approved"
    return Approvals([entry for entry, _ in counted.values()], keys, missing, refused, bool(decisions), withdrawn)


def record_approval(lake: LakeLayout, directory: Path, by: Actor, seen: Aliases | None = None) -> None:
    """Records an approval. Raises ReleaseError if a re-check fails, a newer run has superseded the release, or the recipe takes
    no approval at this time, EndpointError if the endpoint changed since it was `seen`. The champion can be approved again even
    after the next training has begun; this changes no alias."""
    if closed := read_release(directory).policy.closed_now():
        raise ReleaseError(
            f"release {directory.name} cannot be approved now: {closed}. Approve it at another time; a rollback "
            "is always possible"
        )
    endpoint = _endpoint(lake, directory)
    serves = endpoint.read().champion == directory.name
    problems, older = recheck(lake, directory), [] if serves else stale_parts(lake, directory)
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


def recheck(lake: LakeLayout, directory: Path) -> list[str]:
    """Checks gates, digests of all files, whether the parts belong together, the signature where keys are trusted, and, for the
    gate on erased rows, what was erased since. Raises KeyProblemError for trusted keys that cannot be read."""
    return recheck_unsigned(lake, directory) + _signature_problems(lake, directory)


def recheck_unsigned(lake: LakeLayout, directory: Path) -> list[str]:
    """The same without the signature."""
    release = read_release(directory)
    problems = [problem for gate in release.gates if (problem := gate_problem(_now(gate, lake, release)))]
    for place, digest in [(directory, None), *((lake.root / part.path, part.digest) for part in release.parts)]:
        try:
            manifest = read_manifest(place)
            lake.mirror.fetch(place)
        except ManifestError as error:
            problems.append(str(error))
            continue
        problems += file_problems(place, manifest)
        if digest is not None and digest != manifest.digest:
            problems.append(f"{place}: its digest is {manifest.digest[:12]}, and the release was made from {digest[:12]}")
    if release.adapter is not None and release.base is not None and not problems:
        problems += adapter_problems(
            directory, release.adapter, read_manifest(lake.root / release.target.path), release.base.digest
        )
    return problems + disagreements(lake, directory)


def disagreements(lake: LakeLayout, directory: Path) -> list[str]:
    """One sentence for each part of a release that was not made from, or not measured with, the others."""
    try:
        release = read_manifest(directory)
        parts = {item.name.rpartition("/")[2]: item for item in release.inputs}
        report = _manifest_of(lake, parts.pop("evaluation_report", None))
        drafter = parts.pop("speculator", None)
        drafter_manifest = _manifest_of(lake, drafter)
        learnt_from = drafter_manifest.inputs if drafter_manifest is not None else []
    except ManifestError as error:
        return [str(error)]
    if report is None:
        return [f"release {directory.name} names no evaluation report: nothing says what was measured"]
    measured = {item.digest for item in report.inputs}
    targets = list(parts.values())
    problems = [
        f"the evaluation report {report.version} measured another {part.name.rpartition('/')[2]} than {part.version}, which is "
        "released: materialize evaluation_report and release_candidate again"
        for part in [*targets, *([drafter] if drafter else [])]
        if part.digest not in measured
    ]
    for target in targets:
        if drafter is not None and target.digest not in {item.digest for item in learnt_from}:
            name = target.name.rpartition("/")[2]
            problems.append(
                f"the drafter {drafter.version} was trained for another target than {name} {target.version}: "
                "materialize speculator_dataset and what follows it again"
            )
    return problems


def stale_parts(lake: LakeLayout, directory: Path) -> list[str]:
    """One sentence for each artefact behind a release that a run would now make from something else."""
    try:
        return [sentence for _, sentence in outdated_behind(lake, read_manifest(directory))]
    except ManifestError as error:
        return [str(error)]


def _manifest_of(lake: LakeLayout, item: Input | None) -> Manifest | None:
    return read_manifest(lake.artefacts(item.kind) / item.name / item.version) if item else None


def _signature_problems(lake: LakeLayout, directory: Path) -> list[str]:
    """What is wrong with the signature; nothing is checked where no key is trusted and the recipe asks for none."""
    trusted = trusted_keys()
    if trusted is None:
        return (
            [f"the recipe wants a signature, and no key is trusted here: set {TRUSTED_KEYS} to the public keys that may sign"]
            if read_release(directory).policy.signed
            else []
        )
    try:
        check_signature(lake, directory, trusted, date.today())
    except (SignatureRefusedError, ReleaseError) as error:
        return [str(error)]
    return []


def _now(gate: GateResult, lake: LakeLayout, release: Release) -> GateResult:
    """A gate with its measurement as it is now."""
    if gate.name != ERASED_ROWS:
        return gate
    return gate.model_copy(update={"measured": erased_rows(lake, release), "passed": True})


def rollback_target(lake: LakeLayout, workload: str) -> str:
    """The version that a rollback without a name makes champion. Raises EndpointError if there is none left."""
    entries, aliases = Endpoint(lake, workload).seen()
    if aliases.champion is None:
        raise EndpointError(f"{workload}: no release is served yet, so there is no previous release to roll back to")
    for version in reversed(champions_before(entries)):
        if version != aliases.champion and standing(entries, ReleaseRef(version=version)) != "withdrawn":
            return version
    served = [version for entry in entries for version in (entry.previous, entry.champion) if version]
    others = [version for version in dict.fromkeys(served) if version != aliases.champion]
    named = f"; what served at another time can be named with --to: {', '.join(others)}" if others else ""
    raise EndpointError(f"{workload}: there is no previous release to roll back to{named}")


def champions_before(entries: Sequence[EndpointLogEntry]) -> list[str]:
    """The champions up to the present one, oldest first; the present one is last. A promotion adds one. A rollback removes all
    champions after its target, so a second rollback goes further back."""
    champions: list[str] = []
    for entry in entries:
        if entry.champion is None or champions[-1:] == [entry.champion]:
            continue
        if entry.action == "rolled back" and entry.champion in champions:
            while champions[-1] != entry.champion:
                champions.pop()
            continue
        if entry.action == "found" and entry.previous and entry.previous not in champions:
            champions.append(entry.previous)
        champions.append(entry.champion)
    return champions


def taint_of(lake: LakeLayout, directory: Path, champion: str | None) -> str:
    """What a person has to agree to before weights that learnt erased rows serve again, with the champion's gate that they
    miss; "" for others."""
    rows = erased_rows(lake, read_release(directory))
    if not rows:
        return ""
    now = lake.artefacts("release") / directory.parent.name / (champion or directory.name)
    gates = read_release(now).gates if (now / "release.json").exists() else []
    gate = next((gate for gate in gates if gate.name == ERASED_ROWS), None)
    misses = (
        f"it misses the gate {ERASED_ROWS} of the champion ({gate.wanted_text})"
        if gate and rows > gate.wanted
        else f"no gate {ERASED_ROWS} is set that would refuse it"
    )
    return f"the weights of release {directory.name} learnt {rows:,} rows that were erased since: {misses}"


def roll_back(
    lake: LakeLayout, directory: Path, by: Actor, seen: Aliases | None = None, though_tainted: bool = False
) -> Aliases:
    """Makes a former champion serve again, after a re-check; this approves a withdrawn release again. though_tainted: whether a
    person agreed to what `taint_of` says. Raises ReleaseError if a re-check fails, nobody agreed, or the release never was
    champion, EndpointError if it is the champion or the endpoint changed since it was `seen`."""
    workload, version = directory.parent.name, directory.name
    endpoint = Endpoint(lake, workload)
    entries, aliases = endpoint.seen()
    if aliases.champion == version:
        raise EndpointError(f"{workload}: release {version} is the champion already")
    if not endpoint.was_champion(version):
        raise ReleaseError(
            f"release {version} never was the champion of {workload}, so nothing can be rolled back to it; the newest release "
            "is approved instead: millrace approve VERSION"
        )
    if problems := recheck(lake, directory):
        raise ReleaseError(f"release {version} cannot be served again: " + "; ".join(problems))
    if not though_tainted and (taint := taint_of(lake, directory, aliases.champion)):
        raise ReleaseError(
            f"{taint}; nothing was changed: millrace rollback {workload} --to {version} --yes serves it all the same"
        )
    subject = ReleaseRef.of(directory)
    if standing(entries, subject) == "withdrawn":
        endpoint.decide("approved", subject, by, seen)
    return endpoint.roll_back(subject, by, seen)


def rollback_of(entries: Sequence[EndpointLogEntry], release: str) -> EndpointLogEntry | None:
    """The last rollback from this release, unless it was approved again since."""
    decisions = [entry for entry in decisions_on(entries, release) if entry.action != "withdrawn"]
    return decisions[-1] if decisions and decisions[-1].action == "rolled back" else None
