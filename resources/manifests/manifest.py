"""Manifests: a dataset, model or release is a directory whose manifest.json was written last. Its version is the first 12 hex
digits of sha256 over (operation, hash of the operation's source files, config, inputs' digests): same inputs, same version."""

import hashlib
import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from model_ops.jobs import CheckFailed
from resources.manifests.erased import BESIDE, ERASED, SAMPLED, ErasedRecordError, File, after_erasure, erased_in

SCRATCH = ".work"
"""Checkpoints and caches of an unfinished operation; never part of an artefact."""

RUN_RECORDS = SAMPLED | {"metrics.jsonl", "speed.json", "server.log", "bom.cdx.json", "provenance.json"}
"""Records of a run (seconds, tokens/s, memory, a server's output, when and by which run it was made): listed in the manifest,
but not part of the artefact's digest. So the same weights from the same inputs have the same digest in every lake and on every
run."""

CARD = "README.md"
"""The card. A model's names versions and days, so it does not count in the model's digest."""

Kind = Literal["dataset", "model", "release"]


class ManifestError(CheckFailed):
    """A manifest that cannot be read, or does not agree with its files."""


class Input(BaseModel):
    """One input of an operation: another artefact, a slice of a table, or an external directory."""

    model_config = ConfigDict(extra="forbid", validate_by_name=True, serialize_by_alias=True)

    kind: Literal["dataset", "model", "release", "table", "external"]
    name: str
    version: str = ""
    digest: str
    pinned: bool = False
    """Whether an earlier version is meant, such as the champion: a newer one does not make the artefact outdated."""
    taken_as_is: bool = Field(False, alias="kept")
    """Whether it was taken as it is, although its own inputs had newer versions then, as a drafter's target where only the
    drafter learns new rows: the artefact is outdated by another version of it, not by what that is made from."""


class Code(BaseModel):
    model_config = ConfigDict(extra="forbid")

    revision: str
    dirty: bool


class Manifest(BaseModel):
    """What an artefact is, what it was made from, and the digest of each of its files."""

    model_config = ConfigDict(extra="forbid")

    kind: Kind
    name: str
    version: str
    created_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    digest: str
    inputs: list[Input]
    op: str
    config: dict[str, Any]
    recipe_digest: str = ""
    run_id: str = ""
    """The Dagster run that made it; "" outside of a run."""
    code: Code
    environment: dict[str, str]
    metrics: dict[str, Any] = Field(default_factory=dict)
    files: list[File]

    def as_input(self) -> Input:
        return Input(kind=self.kind, name=self.name, version=self.version, digest=self.digest)


def artefact_version(op: str, source_digest: str, config: dict[str, Any], inputs: Iterable[Input]) -> str:
    """First 12 hex digits of sha256 over what determines an artefact."""
    record = [op, source_digest, config, sorted([item.kind, item.name, item.digest] for item in inputs)]
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:12]


def files_under(directory: Path) -> list[Path]:
    """Every file of an artefact's directory except the manifest, records of erasures and the scratch folder, sorted by path."""
    files = []
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if name != SCRATCH]
        files += [
            path
            for name in names
            if not name.startswith(".")  # .x is an interrupted write
            and (path := Path(folder) / name).relative_to(directory).as_posix() not in ("manifest.json", *BESIDE)
        ]
    return sorted(files, key=lambda path: path.relative_to(directory).as_posix())


def describe_files(directory: Path) -> list[File]:
    files = []
    for path in files_under(directory):
        with path.open("rb") as content:
            sha256 = hashlib.file_digest(content, "sha256").hexdigest()
        files.append(File(path=path.relative_to(directory).as_posix(), bytes=path.stat().st_size, sha256=sha256))
    return files


def files_digest(files: Iterable[File], kind: Kind | None = None) -> str:
    """sha256 over the files' digests and paths, without records of the run and, of a model, without its card."""
    lines = "".join(f"{file.sha256}  {file.path}\n" for file in files if not is_record(file.path, kind))
    return hashlib.sha256(lines.encode()).hexdigest()


def is_record(path: str, kind: Kind | None) -> bool:
    """Whether a file of an artefact is a record of the run or, of a model, its card: it differs from run to run."""
    return Path(path).name in RUN_RECORDS or (kind == "model" and path == CARD)


def digest_holds(manifest: Manifest) -> bool:
    """Whether a manifest's digest fits the files it lists."""
    return manifest.digest == files_digest(manifest.files, manifest.kind)


def changed_files(directory: Path, manifest: Manifest) -> list[str]:
    """Paths of an artefact's files that differ from its manifest: changed, missing, or not listed. Files that an erasure
    rewrote have the digest that it recorded, or, if it was killed, still that of the manifest."""
    before, after = read_written(directory).files, after_erasure(directory, manifest.kind, manifest.files)
    now = {(file.path, file.sha256) for file in describe_files(directory)}
    either = {(file.path, file.sha256) for file in (*before, *after)}
    return sorted({path for path, _ in now - either} | {file.path for file in after} - {path for path, _ in now})


def file_problems(directory: Path, manifest: Manifest) -> list[str]:
    """One sentence for each way in which the files of a finished artefact are not those of its manifest."""
    changed, problems = changed_files(directory, manifest), []
    if changed:
        problems.append(
            f"{directory}: {', '.join(changed[:3])}{' and others' if len(changed) > 3 else ''} changed: its files "
            "are not those the release was made from"
        )
    if not digest_holds(manifest):
        problems.append(f"{directory}: the digest in its manifest does not fit the files it lists: restore it from a copy")
    return problems


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a finished artefact; of a dataset that lost rows to an erasure, with the files and the digest that it has
    now. Raises ManifestError if it is missing or invalid."""
    manifest = read_written(directory)
    if manifest.kind != "dataset" or not (directory / ERASED).exists():
        return manifest
    try:
        files = after_erasure(directory, manifest.kind, manifest.files)
    except ErasedRecordError as error:
        raise ManifestError(str(error)) from error
    noted = erased_in(directory)
    counted = [noted.counted_as.get(file.path, file) for file in files] if noted is not None else files
    return manifest.model_copy(update={"files": files, "digest": files_digest(counted)})


def counted_as(directory: Path, path: str) -> File | None:
    """A file of a finished artefact as it counts in the artefact's digest; None for a file that is not part of it."""
    noted = erased_in(directory)
    if noted is not None and path in noted.counted_as:
        return noted.counted_as[path]
    return next((file for file in read_manifest(directory).files if file.path == path), None)


def read_written(directory: Path) -> Manifest:
    """The manifest as it was written. Raises ManifestError if it is missing or invalid."""
    path = directory / "manifest.json"
    try:
        return Manifest.model_validate_json(path.read_text())
    except FileNotFoundError as error:
        raise ManifestError(f"{directory} has no manifest.json: it is unfinished, or not an artefact") from error
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ManifestError(f"{path}: field {where or '(whole file)'}: {problem['msg']}") from error


def external_input(place: str) -> Input:
    """An external model or file as an input. Its digest is over its files, or over its name if it is a model id of a hub."""
    if Path(place).is_dir():
        return Input(kind="external", name=place, digest=files_digest(describe_files(Path(place))))
    if Path(place).is_file():
        return Input(kind="external", name=place, digest=hashlib.sha256(Path(place).read_bytes()).hexdigest())
    return Input(kind="external", name=place, digest=hashlib.sha256(place.encode()).hexdigest())
