"""Pushes a release to a bucket or to the Hugging Face Hub: weights first, the release's manifest last.

    pushed = push_release(lake, directory, "s3://company/releases/tutor")
    pushed = push_release(lake, directory, "hf://company/tutor")            # token: HF_TOKEN

What is pushed is a package (resources/attesting/packaging.py): release, target and drafter at their paths in a lake, with the
signatures where there are any, so that its scripts work and verify.py verifies it. Whoever finds the manifest finds all of it.
Files that are there already with the same content are not sent again, so a push that was stopped continues, and a second push
sends nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from resources.attesting.hub_repository import SCHEME as HUB
from resources.attesting.hub_repository import HubRepository
from resources.attesting.packaging import lay_beside
from resources.attesting.s3_prefix import S3Prefix
from resources.lake import Lake
from resources.releasing.recheck import recheck_unsigned
from resources.releasing.release import ReleaseError
from resources.releasing.release_signature import is_signed
from resources.releasing.release_tree import release_files
from stores.s3 import SCHEMES

WEIGHTS = (".safetensors", ".gguf")
CARD = "README.md"


@dataclass(frozen=True)
class Pushed:
    files: int
    bytes: int
    """`files`, `bytes`: what was sent."""
    there: int
    """Files that the destination had already."""
    signed: bool
    """Whether others can verify the release."""


class Destination(Protocol):
    """Where a release is pushed to."""

    def missing(self, files: Mapping[str, Path]) -> list[str]:
        """Paths of the files that are not there with the same content."""
        ...

    def send(self, files: Mapping[str, Path], about: str) -> None:
        """Writes files; those of one call appear in any order, those of a later call later."""
        ...


def push_release(lake: Lake, directory: Path, to: str) -> Pushed:
    """Raises ReleaseError for a release whose files changed and for a destination that is not understood or refuses, and
    S3Error as stores/s3.py does."""
    destination = destination_of(to)
    if problems := recheck_unsigned(lake, directory):
        raise ReleaseError(f"release {directory.name} is not pushed: " + "; ".join(problems))
    files = release_files(lake, directory)
    home = directory.relative_to(lake.root).as_posix()
    with tempfile.TemporaryDirectory(prefix="millrace-push-") as folder:
        signed = is_signed(directory)
        if signed:
            lay_beside(lake, directory, Path(folder))
        beside = {path.name: path for path in Path(folder).iterdir()}
        if f"{home}/{CARD}" in files:
            beside[CARD] = files[f"{home}/{CARD}"]
        everything = {**files, **beside}
        missing = destination.missing(everything)
        sent = 0
        for about, chosen in _in_order(missing, f"{home}/manifest.json"):
            if chosen:
                destination.send({path: everything[path] for path in chosen},
                                 f"{about} of {directory.parent.name} {directory.name}")
                sent += sum(everything[path].stat().st_size for path in chosen)
    return Pushed(len(missing), sent, len(everything) - len(missing), signed)


def destination_of(to: str) -> Destination:
    """Raises ReleaseError for anything else than hf://ORG/REPO and s3://BUCKET/PREFIX."""
    if to.startswith(HUB):
        return HubRepository.of(to)
    if to.startswith(SCHEMES):
        return S3Prefix.of(to)
    raise ReleaseError(f"{to} is no place to push to: name hf://ORG/REPOSITORY or s3://BUCKET/PREFIX")


def _in_order(paths: list[str], manifest: str) -> list[tuple[str, list[str]]]:
    """Weights, everything else, the manifest."""
    weights = [path for path in paths if path.endswith(WEIGHTS)]
    others = [path for path in paths if path not in weights and path != manifest]
    return [("weights", weights), ("files", others), ("manifest", [path for path in paths if path == manifest])]
