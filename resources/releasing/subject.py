"""The release that a log entry is about, with its digest and gates at that time.

    subject_of(directory)       # version, digest, gates
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from resources.artefacts.manifest import read_manifest
from resources.releasing.gate_result import GateResult
from resources.releasing.release import read_release


class Subject(BaseModel):
    """A release: its version, the digest of its files, and its gates as they were."""

    model_config = ConfigDict(frozen=True)

    release: str
    digest: str = ""
    gates: list[GateResult] = Field(default_factory=list)


def subject_of(directory: Path) -> Subject:
    """A release's directory as a subject. Raises ReleaseError or ManifestError if it is not a finished release."""
    release = read_release(directory)
    return Subject(release=directory.name, digest=read_manifest(directory).digest, gates=release.gates)
