"""The registry of artefacts: datasets, models and releases, found and finished by their manifests.

    draft = registry.draft("model", "sft_model", op="sft", sources=("model_ops/operations/sft.py",), config=..., inputs=[...])
    if draft.finished is None:
        ...                                  # fill draft.directory; what a killed run left there may be continued
        manifest = registry.finish(draft, metrics)
    registry.current("model", "sft_model")   # what downstream steps take

Names are the asset's, prefixed by the workload on disk. A directory without manifest.json is not an artefact.
"""

import importlib.metadata
import json
import logging
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from model_ops.files import write_json, write_text
from resources.digests import PROJECT, source_digest
from resources.lake import LakeLayout
from resources.manifests import (
    ELSEWHERE,
    SCRATCH,
    Code,
    File,
    Input,
    Kind,
    Manifest,
    ManifestError,
    artefact_version,
    describe_files,
    files_digest,
    read_manifest,
)
from stores.in_use import hold, let_go
from stores.mirror.bucket import Conflict

ENVIRONMENT = ("dagster", "duckdb", "deltalake", "numpy", "pyarrow", "safetensors", "tokenizers", "torch", "transformers")


@dataclass(frozen=True)
class ArtefactDraft:
    """An artefact that is about to be made: where, from what; `finished` is its manifest if it exists already."""

    kind: Kind
    name: str
    version: str
    directory: Path
    op: str
    config: dict[str, Any]
    inputs: tuple[Input, ...]
    finished: Manifest | None


@dataclass(frozen=True)
class Registry:
    """The artefacts of one workload in one lake."""

    lake: LakeLayout
    workload: str
    recipe_digest: str = ""
    run_id: str = ""
    """The Dagster run that works here; "" outside of one."""

    def draft(
        self, kind: Kind, name: str, op: str, sources: tuple[str, ...], config: dict[str, Any], inputs: list[Input]
    ) -> ArtefactDraft:
        """Names the artefact that (op, sources, config, inputs) determine, and makes its directory.

        sources: the operation's files; the files that they use count too (digests/code.py).
        """
        version = artefact_version(op, source_digest(*sources), config, inputs)
        directory = self._home(kind, name) / version
        if not (directory / "manifest.json").exists():
            self.lake.mirror.pull_version(directory)
        is_finished = (directory / "manifest.json").exists() and not (directory / ELSEWHERE).exists()
        finished = read_manifest(directory) if is_finished else None
        if finished is not None:
            finished = self._published(directory, finished)
            self._point(finished)
        else:
            hold(directory)  # leftovers.py does not remove a directory that is held
        return ArtefactDraft(kind, name, version, directory, op, config, tuple(inputs), finished)

    def finish(self, draft: ArtefactDraft, metrics: dict[str, Any]) -> Manifest:
        """Writes the manifest, as the last file, and makes this version the current one."""
        shutil.rmtree(draft.directory / SCRATCH, ignore_errors=True)
        files = describe_files(draft.directory)
        if not files:
            raise ManifestError(f"{draft.name}: operation {draft.op} left no files in {draft.directory}")
        manifest = self.manifest_of(draft, metrics, files)
        if (draft.directory / ELSEWHERE).exists():  # only its manifest was copied here
            self.lake.mirror.remove(draft.directory)
            (draft.directory / ELSEWHERE).unlink()
        write_text(draft.directory / "manifest.json", manifest.model_dump_json(indent=2) + "\n")
        let_go(draft.directory)
        manifest = self._published(draft.directory, manifest)
        self._point(manifest)
        return manifest

    def manifest_of(self, draft: ArtefactDraft, metrics: dict[str, Any], files: list[File]) -> Manifest:
        """The manifest of a draft with these files; nothing is written."""
        return Manifest(
            kind=draft.kind,
            name=f"{self.workload}/{draft.name}",
            version=draft.version,
            digest=files_digest(files, draft.kind),
            inputs=list(draft.inputs),
            op=draft.op,
            config=draft.config,
            recipe_digest=self.recipe_digest,
            run_id=self.run_id,
            code=_code(),
            environment=_environment(),
            metrics=metrics,
            files=files,
        )

    def current(self, kind: Kind, name: str) -> Manifest:
        """The manifest of the version that was made, or confirmed, last.

        Raises ManifestError when there is none yet; the message names the asset to materialize.
        """
        pointer = self._home(kind, name) / "current.json"
        self.lake.mirror.pull_file(pointer)
        if not pointer.exists():
            raise ManifestError(f"{self.workload}/{name} does not exist yet: materialize {name} first (`--select +ASSET` does)")
        directory = pointer.parent / json.loads(pointer.read_text())["version"]
        if not (directory / "manifest.json").exists():
            self.lake.mirror.pull_version(directory)
        return read_manifest(directory)

    def exists(self, kind: Kind, name: str) -> bool:
        """Whether any version was ever finished."""
        return (self._home(kind, name) / "current.json").exists()

    def versions(self, kind: Kind, name: str) -> list[Manifest]:
        """The manifests of all finished versions, oldest first."""
        manifests = [read_manifest(path.parent) for path in self._home(kind, name).glob("*/manifest.json")]
        return sorted(manifests, key=lambda manifest: manifest.created_at)

    def version(self, kind: Kind, name: str, version: str) -> Manifest:
        """The manifest of one version. Raises ManifestError when it is not there."""
        return read_manifest(self._home(kind, name) / version)

    def directory(self, manifest: Manifest) -> Path:
        """The artefact's directory, with all its files."""
        place = self._home(manifest.kind, manifest.name.split("/", 1)[1]) / manifest.version
        self.lake.mirror.fetch(place)
        return place

    def _home(self, kind: Kind, name: str) -> Path:
        home = self.lake.artefacts(kind) / self.workload
        return home if kind == "release" else home / name

    def _point(self, manifest: Manifest) -> None:
        """Makes a version the current one. A pointer that already names it is not written again, because a changed file counts
        as a change of the lake."""
        pointer = self._home(manifest.kind, manifest.name.split("/", 1)[1]) / "current.json"
        with suppress(OSError, ValueError, KeyError, TypeError):
            if json.loads(pointer.read_text())["version"] == manifest.version:
                return
        write_json(pointer, {"version": manifest.version})
        try:
            self.lake.mirror.publish(pointer)
        except Conflict as error:
            pointer.unlink()
            self.lake.mirror.pull_file(pointer)
            raise ManifestError(
                f"another machine made another version of {manifest.name} the current one meanwhile: "
                f"{manifest.version} is kept, and a new run decides again"
            ) from error

    def _published(self, directory: Path, manifest: Manifest) -> Manifest:
        """Uploads a finished artefact. If another machine has finished the same version meanwhile, that one counts."""
        try:
            self.lake.mirror.publish_version(directory, logging.getLogger(__name__).warning)
        except Conflict:
            self.lake.mirror.pull_version(directory)
            return read_manifest(directory)
        return manifest


@cache
def _code() -> Code:
    """The git revision of a checkout, or the version of an installed wheel, or "unknown" for a plain copy.

    A wheel's folder may lie in some other project's checkout: only one whose root is this project's counts.
    """

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True, check=True).stdout.strip()

    with suppress(OSError, subprocess.CalledProcessError):  # no git, or no checkout: the installed version is used below
        if Path(git("rev-parse", "--show-toplevel")) == PROJECT:
            return Code(revision=git("rev-parse", "HEAD"), dirty=bool(git("status", "--porcelain")))
    for installed in importlib.metadata.distributions(name="millrace", path=[str(PROJECT)]):
        return Code(revision=installed.version, dirty=False)
    return Code(revision="unknown", dirty=True)


@cache
def _environment() -> dict[str, str]:
    versions = {}
    for package in ENVIRONMENT:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
