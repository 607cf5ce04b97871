"""Finds a release by its version, the beginning of one, workload/version, or its directory.

A beginning of fewer than `SHORTEST_SURE` characters may mean another release tomorrow, so the whole version is shown before an
alias is changed by it.
"""

from dataclasses import dataclass
from pathlib import Path

from model_ops.jobs import Misuse
from resources.lake import LakeLayout
from resources.releases.release import ReleaseError

SHORTEST_SURE = 6
MOST_LISTED = 10


class UnknownReleaseError(Misuse, ReleaseError):
    """A name that no release has, or more than one."""


class UnsureNameError(Misuse):
    """The beginning of a version is too short to act upon without confirmation."""


@dataclass(frozen=True)
class NamedRelease:
    """A release, and the given beginning of its version."""

    directory: Path
    given: str = ""

    @property
    def sure(self) -> bool:
        """Whether the given name is long enough to act upon without confirmation."""
        return not self.given or len(self.given) >= SHORTEST_SURE


def find_release(lake: LakeLayout, text: str, workload: str = "") -> NamedRelease:
    """Finds a release, among all workloads or in one. Raises UnknownReleaseError unless exactly one is meant."""
    root = lake.artefacts("release")
    directory = Path(text).expanduser()
    if text and (directory / "release.json").exists():
        directory = directory.resolve()
        if directory.parent.parent != root or workload not in ("", directory.parent.name):
            raise UnknownReleaseError(f"{directory} is no release of {workload or lake.place}: name its own lake with --lake")
        return NamedRelease(directory)
    named, _, version = text.rstrip("/").rpartition("/")
    releases = [path.parent for path in root.glob("*/*/manifest.json")]
    releases = [path for path in releases if workload in ("", path.parent.name)]
    of_workload = [path for path in releases if named in ("", path.parent.name)]
    whole = [path for path in of_workload if path.name == version]
    matches = whole or [path for path in of_workload if version and path.name.startswith(version)]
    if len(matches) == 1:
        return NamedRelease(matches[0], "" if whole else version)
    problem = "names more than one release" if matches else "names no release"
    raise UnknownReleaseError(
        f"{text!r} {problem} of {workload or lake.place}; there are: {_listed(root, matches or releases)}"
    )


def _listed(root: Path, releases: list[Path]) -> str:
    newest = sorted(releases, key=lambda path: -(path / "manifest.json").stat().st_mtime)
    said = ", ".join(path.relative_to(root).as_posix() for path in newest[:MOST_LISTED])
    more = len(newest) - MOST_LISTED
    return (said or "none yet") + (f" and {more} more" if more > 0 else "")
