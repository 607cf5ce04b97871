"""The registry of artefacts: datasets, models and releases, found and finished by their manifests.

draft = registry.draft("model", "sft_model", op="sft", sources=("model_ops/operations/sft.py",), config=..., inputs=[...])
if draft.finished is None:
    ...                                  # fill draft.directory; what a killed run left there may be continued
    manifest = registry.finish(draft, metrics)
"""

import importlib.metadata
import json
import logging
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

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
        """Names the artefact that (op, sources, config, inputs) determine, and makes its directory. sources: files."""
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
        """The version that was made, or confirmed, last. Raises ManifestError, with the asset to materialize, without any."""
        pointer = self._home(kind, name) / "current.json"
        self.lake.mirror.pull_file(pointer)
        if not pointer.exists():
            raise ManifestError(f"{self.workload}/{name} does not exist yet: materialize {name} first (`--select +ASSET` does)")
        directory = pointer.parent / json.loads(pointer.read_text())["version"]
        if not (directory / "manifest.json").exists():
            self.lake.mirror.pull_version(directory)
        return read_manifest(directory)

    def exists(self, kind: Kind, name: str) -> bool:
        return (self._home(kind, name) / "current.json").exists()

    def versions(self, kind: Kind, name: str) -> list[Manifest]:
        manifests = [read_manifest(path.parent) for path in self._home(kind, name).glob("*/manifest.json")]
        return sorted(manifests, key=lambda manifest: manifest.created_at)

    def version(self, kind: Kind, name: str, version: str) -> Manifest:
        """The manifest of one version. Raises ManifestError when it is not there."""
        return read_manifest(self._home(kind, name) / version)

    def directory(self, manifest: Manifest) -> Path:
        place = self._home(manifest.kind, manifest.name.split("/", 1)[1]) / manifest.version
        self.lake.mirror.fetch(place)
        return place

    def _home(self, kind: Kind, name: str) -> Path:
        home = self.lake.artefacts(kind) / self.workload
        return home if kind == "release" else home / name

    def _point(self, manifest: Manifest) -> None:
        """Makes a version the current one; a pointer that names it stays, because a changed file is a change of the lake."""
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
    """The git revision of a checkout of this project, or the version of an installed wheel, or "unknown" for a plain copy."""

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


def current_manifests(lake: LakeLayout, workload: str) -> dict[str, Manifest]:
    """The current artefacts of a workload, by the last part of their name. One that cannot be read is left out."""
    manifests = {}
    for kind in ARTEFACTS:
        home = lake.artefacts(kind) / workload
        for pointer in [home / "current.json"] if kind == "release" else sorted(home.glob("*/current.json")):
            if (manifest := _pointed_to(pointer)) is not None:
                manifests[manifest.name.rpartition("/")[2]] = manifest
    return manifests


def up_to_date(registry: Registry, kind: Kind, name: str) -> Manifest:
    """The current manifest of an artefact that downstream steps take. Raises ManifestError, with the asset to materialize, if
    there is none yet, or if something behind it is no longer current."""
    manifest = registry.current(kind, name)
    if causes := outdated_behind(registry.lake, manifest):
        first, why = step_of(causes[0][0]), "; ".join(sentence for _, sentence in causes)
        raise ManifestError(
            f'{manifest.name} {manifest.version} is out of date: {why}. First run: millrace run RECIPE --select "{first}+"'
        )
    return manifest


def outdated_behind(lake: LakeLayout, manifest: Manifest) -> list[tuple[str, str]]:
    """Why a run would now make an artefact from something else: (artefact to make again, a sentence), furthest first."""
    return causes_of(manifest.name.rpartition("/")[2], stale_inputs(_behind(lake, manifest)))


def warm_start_parent(registry: Registry, kind: Kind, name: str, inputs: Iterable[Manifest]) -> Manifest | None:
    """The artefact to continue from: the current version, or its own parent if the current version already used these inputs.
    So the same inputs always give the same artefact. None if there is no version yet."""
    if not registry.exists(kind, name):
        return None
    current = registry.current(kind, name)
    taken = {(item.kind, item.name): item for item in current.inputs}
    if not {manifest.digest for manifest in inputs} <= {item.digest for item in taken.values()}:
        return current
    before = taken.get((kind, f"{registry.workload}/{name}"))
    return registry.version(kind, name, before.version) if before else None


def step_of(artefact: str) -> str:
    """The step of the graph that makes an artefact: its name, except for releases."""
    return "release_candidate" if artefact == "release" else artefact


def _behind(lake: LakeLayout, manifest: Manifest) -> dict[str, Manifest]:
    manifests: dict[tuple[str, str], Manifest] = {(manifest.kind, manifest.name): manifest}
    waiting = [manifest]
    while waiting:
        for item in waiting.pop().inputs:
            if item.kind in ARTEFACTS and (item.kind, item.name) not in manifests:
                current = _pointed_to(lake.artefacts(item.kind) / item.name / "current.json")
                if current is not None:
                    manifests[item.kind, item.name] = current
                    waiting.append(current)
    return {name.rpartition("/")[2]: each for (_, name), each in manifests.items()}


def _pointed_to(pointer: Path) -> Manifest | None:
    try:
        return read_manifest(pointer.parent / json.loads(pointer.read_text())["version"])
    except (OSError, ValueError, KeyError, TypeError, ManifestError):
        return None


ARTEFACTS = ("dataset", "model", "release")

DigestOf = Callable[[Manifest, Input], str | None]
"""The current digest of an input that is not an artefact; None if it is unknown."""


@dataclass(frozen=True)
class StaleInput:
    """An outdated input of an artefact: as the manifest names it, and the current one."""

    kind: str
    name: str
    version: str
    digest: str
    reason: Literal["changed", "gone", "stale"]
    """`changed`: the current version has another digest; `gone`: there is none; `stale`: its own inputs are outdated."""
    current_version: str = ""
    current_digest: str = ""

    def __str__(self) -> str:
        name = self.name.rpartition("/")[2]
        if self.reason == "stale":
            return f"{name} {self.version} is stale itself"
        used = self.version or self.digest[:12]
        if self.reason == "gone":
            return f"made from {name} {used}, which has no current version"
        if self.version and self.version == self.current_version:
            return f"made from {name} {used}, of which rows were erased since"
        return f"made from {name} {used}, current is {self.current_version or self.current_digest[:12]}"


def stale_inputs(
    manifests: Mapping[str, Manifest], digest_of: DigestOf | None = None, outdated: Collection[str] = ()
) -> dict[str, list[StaleInput]]:
    """The inputs that are not current, by artefact. Artefacts whose inputs are all current are left out. manifests: the current
    artefacts of one workload, by the last part of their name. outdated: names of artefacts that are outdated for another
    reason, such as changed settings; what was made from them is outdated too."""
    known: dict[tuple[str, str], Manifest] = {(each.kind, each.name): each for each in manifests.values()}
    outdated_inputs: dict[tuple[str, str], list[StaleInput]] = {}

    def look(manifest: Manifest) -> list[StaleInput]:
        key = (manifest.kind, manifest.name)
        if key not in outdated_inputs:
            outdated_inputs[key] = []  # two artefacts that name each other: stop here
            # an earlier version of the same artefact is its warm-start parent, which need not be current
            others = [item for item in manifest.inputs if (item.kind, item.name) != key]
            outdated_inputs[key] = [stale for item in others if (stale := compare(manifest, item)) is not None]
        return outdated_inputs[key]

    def compare(manifest: Manifest, item: Input) -> StaleInput | None:
        if item.pinned:
            return None
        named = {"kind": item.kind, "name": item.name, "version": item.version, "digest": item.digest}
        if item.kind not in ARTEFACTS:
            now = digest_of(manifest, item) if digest_of else None
            if now is None or now == item.digest:
                return None
            return StaleInput(**named, reason="changed", current_digest=now)
        current = known.get((item.kind, item.name))
        if current is None:
            return StaleInput(**named, reason="gone")
        standing = {"current_version": current.version, "current_digest": current.digest}
        if current.digest != item.digest:
            return StaleInput(**named, **standing, reason="changed")
        if item.taken_as_is:
            return None
        is_stale = bool(look(current)) or current.name.rpartition("/")[2] in outdated
        return StaleInput(**named, **standing, reason="stale") if is_stale else None

    return {name: stale for name, manifest in manifests.items() if (stale := look(manifest))}


def causes_of(name: str, stale: Mapping[str, list[StaleInput]]) -> list[tuple[str, str]]:
    """Why an artefact is out of date, at the root: (artefact to make again, a sentence that says why), furthest first. stale:
    what `stale_inputs` returns. Empty if the artefact is up to date."""
    causes: dict[tuple[str, str], None] = {}

    def look(artefact: str, seen: frozenset[str]) -> None:
        items = stale.get(artefact, [])
        for parent in (item.name.rpartition("/")[2] for item in items if item.reason == "stale"):
            if parent not in seen:
                look(parent, seen | {parent})
        for item in items:
            if item.reason != "stale":
                causes[artefact, f"{artefact} was {item}"] = None

    look(name, frozenset({name}))
    return list(causes)
