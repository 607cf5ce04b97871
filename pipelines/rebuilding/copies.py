"""Copies an artefact from one lake to another. Version and digest stay; with a release go its target, drafter and an adapter's
base. Of other ancestors only manifests go, and `elsewhere.json` names the lake of their files. Files are compared with the
digests while they are copied; a stopped copy continues; the manifest goes last."""

import hashlib
import logging
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from model_ops.files import replacement, write_json
from model_ops.jobs import counted, size
from resources.artefacts import behind, home_of
from resources.catalog import find_artefact, publish
from resources.lake import LakeError, LakeLayout, at_work
from resources.manifests import BESIDE, ELSEWHERE, File, Manifest, ManifestError, read_manifest
from resources.releases import read_release
from stores.in_use import hold, let_go
from stores.mirror.bucket import Conflict

CHUNK = 1 << 20


@dataclass
class CopyReport:
    """What a copy did."""

    whole: list[str] = field(default_factory=list)
    """Copied artefacts, name@version."""
    there: list[str] = field(default_factory=list)
    """Artefacts that the lake had already."""
    manifests: int = 0
    """How many ancestors went as manifests."""
    files: int = 0
    bytes: int = 0
    """`files`, `bytes`: what was transferred."""
    current: list[str] = field(default_factory=list)
    """Artefacts that became the current version there."""
    gone: list[str] = field(default_factory=list)
    """Ancestors whose manifest is not in the first lake any more."""


def copy_artefact(lake: LakeLayout, artefact: str, to: LakeLayout) -> CopyReport:
    """Copies an artefact. artefact: as `millrace lineage` takes it. Raises CatalogError unless exactly one artefact is meant,
    ManifestError for a file that does not agree with its manifest, LakeError if both lakes are one or the other lake has the
    version with other content."""
    if lake.root == to.root:
        raise LakeError(f"{artefact} is in {to.place} already: name another lake to copy it to")
    first = read_manifest(lake.root / find_artefact(lake, artefact))
    copied = CopyReport()
    with at_work(to):
        wholes = [*_parts(lake, first), first]
        _copy_ancestry(lake, wholes, to, copied)
        for manifest in wholes:
            _copy_whole(lake, manifest, to, copied)
        for manifest in wholes:
            _make_current(manifest, to, copied)
        publish(to)
    return copied


def _parts(lake: LakeLayout, manifest: Manifest) -> Iterator[Manifest]:
    if manifest.kind == "release":
        release = read_release(_place(lake, manifest))
        for part in release.parts:
            yield read_manifest(lake.root / part.path)


def _copy_ancestry(lake: LakeLayout, wholes: list[Manifest], to: LakeLayout, copied: CopyReport) -> None:
    for item, manifest in behind(lake, wholes):
        if manifest is None:
            copied.gone.append(f"{item.name}@{item.version}")
            continue
        place = _place(lake, manifest)
        there = _place(to, manifest)
        if not (there / "manifest.json").exists():
            elsewhere = place / ELSEWHERE
            if elsewhere.exists():
                shutil.copyfile(elsewhere, _folder(there) / ELSEWHERE)
            else:
                write_json(there / ELSEWHERE, {"lake": lake.place})
            _copy_beside(place, there)
            _finish(place, there, to)
            copied.manifests += 1


def _copy_whole(lake: LakeLayout, manifest: Manifest, to: LakeLayout, copied: CopyReport) -> None:
    source, there = _place(lake, manifest), _place(to, manifest)
    named = f"{manifest.name}@{manifest.version}"
    if (source / ELSEWHERE).exists():
        said = f"{lake.place} has only the manifest of {named}: copy it from the lake that {source / ELSEWHERE} names"
        raise ManifestError(said)
    if not (there / "manifest.json").exists():
        to.mirror.pull_version(there)
    if (there / "manifest.json").exists() and not (there / ELSEWHERE).exists():
        if read_manifest(there).digest != manifest.digest:
            raise LakeError(
                f"{to.place} has {named} with other content: the same inputs gave other bytes there, or rows were "
                "erased from one of both; remove one, or copy to another lake"
            )
        copied.there.append(named)
        return
    lake.mirror.fetch(source)
    hold(_folder(there))
    for file in manifest.files:
        if not _is_there(there / file.path, file):
            _copy_file(source / file.path, there / file.path, file, named)
            copied.files += 1
            copied.bytes += file.bytes
    _copy_beside(source, there)
    if (there / ELSEWHERE).exists():
        to.mirror.remove(there)  # the bucket has the manifest alone; all of it goes up now
        (there / ELSEWHERE).unlink()
    _finish(source, there, to)
    let_go(there)
    copied.whole.append(named)


def _copy_file(source: Path, there: Path, file: File, named: str) -> None:
    digest = hashlib.sha256()
    try:
        with replacement(there) as temporary, source.open("rb") as content, temporary.open("wb") as target:
            while chunk := content.read(CHUNK):
                digest.update(chunk)
                target.write(chunk)
            target.flush()
            if digest.hexdigest() != file.sha256:
                raise ManifestError(
                    f"{source} is not the file that the manifest of {named} names: it was changed; restore it "
                    "from a copy, or make the artefact again"
                )
    except FileNotFoundError as error:
        said = f"{source} is missing, and the manifest of {named} names it: restore it from a copy, or make the artefact again"
        raise ManifestError(said) from error


def _is_there(path: Path, file: File) -> bool:
    with suppress(OSError), path.open("rb") as content:
        return path.stat().st_size == file.bytes and hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
    return False


def _copy_beside(source: Path, there: Path) -> None:
    """What says that rows were erased."""
    for name in BESIDE - {ELSEWHERE}:
        if (source / name).exists():
            _folder(there)
            with replacement(there / name) as temporary:
                shutil.copyfile(source / name, temporary)


def _finish(source: Path, there: Path, to: LakeLayout) -> None:
    with replacement(there / "manifest.json") as temporary:
        shutil.copyfile(source / "manifest.json", temporary)
    try:
        to.mirror.publish_version(there, logging.getLogger(__name__).warning)
    except Conflict:
        to.mirror.pull_version(there)


def _make_current(manifest: Manifest, to: LakeLayout, copied: CopyReport) -> None:
    """Where the other lake has no current version yet."""
    pointer = _place(to, manifest).parent / "current.json"
    to.mirror.pull_file(pointer)
    if not pointer.exists():
        write_json(pointer, {"version": manifest.version})
        to.mirror.publish(pointer)
        copied.current.append(manifest.name)


def _place(lake: LakeLayout, manifest: Manifest) -> Path:
    return home_of(lake, manifest.kind, manifest.name) / manifest.version


def _folder(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def sentences(copied: CopyReport, to: LakeLayout) -> list[str]:
    """One sentence for each thing that a person may want to know."""
    said = [f"copied {name} to {to.place}" for name in copied.whole]
    said += [f"{name} is in {to.place} already" for name in copied.there]
    if copied.files:
        said.append(f"{counted(copied.files, 'file')}, {size(copied.bytes)}")
    if copied.manifests:
        said.append(f"{counted(copied.manifests, 'manifest')} of what it was made from, without files")
    said += [f"{name}, behind it, is gone from the first lake: its lineage ends there" for name in copied.gone]
    said += [f"{name} is the current version there" for name in copied.current]
    return said
