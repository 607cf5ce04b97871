"""Rollback: makes an earlier champion the champion again.

A release that was rolled back is never chosen automatically: it must be named, which approves it again. Weights that learnt
rows which were erased since come back only if a person says so.
"""

from collections.abc import Sequence
from pathlib import Path

from resources.endpoints.actor import Actor
from resources.endpoints.endpoint_log import EndpointLogEntry, decisions_on
from resources.endpoints.endpoints import Aliases, Endpoint, EndpointError, standing
from resources.endpoints.release_checks import recheck
from resources.lake import LakeLayout
from resources.releases import ERASED_ROWS, ReleaseError, ReleaseRef, erased_rows, read_release


def rollback_target(lake: LakeLayout, workload: str) -> str:
    """The version that a rollback without a name makes champion. Raises EndpointError if there is none left."""
    entries, aliases = Endpoint(lake, workload).seen()
    if aliases.champion is None:
        raise EndpointError(f"{workload}: no release is served yet, so there is no previous release to roll back to")
    for version in reversed(champions_before(entries)):
        if version != aliases.champion and standing(entries, ReleaseRef(release=version)) != "withdrawn":
            return version
    served = [version for entry in entries for version in (entry.previous, entry.champion) if version]
    others = [version for version in dict.fromkeys(served) if version != aliases.champion]
    named = f"; what served at another time can be named with --to: {', '.join(others)}" if others else ""
    raise EndpointError(f"{workload}: there is no previous release to roll back to{named}")


def champions_before(entries: Sequence[EndpointLogEntry]) -> list[str]:
    """The champions up to the present one, oldest first; the present one is last.

    A promotion adds one. A rollback removes all champions after its target, so a second rollback goes further back.
    """
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
    """Makes a former champion serve again, after a re-check; this approves a withdrawn release again. though_tainted: whether
    a person agreed to what `taint_of` says.

    Raises ReleaseError if a re-check fails, nobody agreed, or the release never was champion, EndpointError if it is the
    champion or the endpoint changed since it was `seen`.
    """
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
