"""Packages: a signed release with its models as one directory, tar or OCI layout that a machine without millrace can verify.

A package has the release, its target and its drafter at their paths in a lake, so that the release's serving scripts work in
it; beside them model.sig (OpenSSF), provenance.dsse.json (SLSA), approvals.json (the signed entries of the endpoint's log) and
verify.py, which checks all of them. It is written under another name and renamed, so a package is whole or not there.

The OCI layout is an artifact with one layer per file, as ORAS writes and reads it: `oras pull --oci-layout DIRECTORY:VERSION`.
Form: https://github.com/opencontainers/image-spec, image-layout.md and manifest.md.
"""

import hashlib
import json
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

from model_ops.jobs import size
from resources.endpoints import EndpointLog, recheck
from resources.lake import LakeLayout
from resources.manifests import SIGNATURE, SIGNED_PROVENANCE
from resources.releases import ReleaseError
from resources.signing import check_signature, is_signed, lay_out, release_files, trusted_keys

VERIFIER = Path(__file__).with_name("verify_package.py")
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT = "application/vnd.millrace.release.v1"
LAYER = "application/octet-stream"
EMPTY = b"{}"


@dataclass(frozen=True)
class Package:
    """What was written."""

    files: int
    bytes: int


def package(lake: LakeLayout, directory: Path, out: Path, form: Literal["directory", "tar", "oci"]) -> Package:
    """Writes a package. Raises ReleaseError for a release that is not signed or whose files changed, and for a place that
    exists or has no room."""
    if out.exists():
        raise ReleaseError(f"{out} exists already: name a new place for the package")
    if not out.absolute().parent.is_dir():
        raise ReleaseError(f"{out.absolute().parent} is no directory: make it first, or name another place")
    if not is_signed(directory):
        raise ReleaseError(
            f"release {directory.name} is not signed, so nobody could verify the package: millrace sign {directory.name}"
        )
    if problems := recheck(lake, directory):
        raise ReleaseError(f"release {directory.name} is not packaged: " + "; ".join(problems))
    if (trusted := trusted_keys()) is not None:
        check_signature(lake, directory, trusted, date.today())
    files = release_files(lake, directory)
    needed = sum(path.stat().st_size for path in files.values()) * (1 if form == "directory" else 2)
    free = shutil.disk_usage(out.absolute().parent).free
    if needed > free:
        raise ReleaseError(
            f"{out.absolute().parent} has {size(free)} free and the package needs {size(needed)}: name a place with more room"
        )
    with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=f".{out.name}.") as folder:
        tree, other = Path(folder) / "tree", Path(folder) / form
        lay_out(files, tree, link=False)
        lay_beside(lake, directory, tree)
        written = [path for path in sorted(tree.rglob("*")) if path.is_file()]
        package_ = Package(len(written), sum(path.stat().st_size for path in written))
        if form == "tar":
            _write_tar(tree, written, other, f"{directory.parent.name}-{directory.name}")
        elif form == "oci":
            _write_oci(tree, written, other, directory)
        (tree if form == "directory" else other).rename(out)
    return package_


def lay_beside(lake: LakeLayout, directory: Path, tree: Path) -> None:
    """Lays the signatures, the approvals and the verifier into `tree`."""
    for name in (SIGNATURE, SIGNED_PROVENANCE):
        if (directory / name).exists():
            shutil.copyfile(directory / name, tree / name)
    # as they were written: a signature is over those fields that an entry had then
    entries = [
        entry
        for entry in EndpointLog(lake, directory.parent.name).written()
        if entry.get("release") == directory.name and entry.get("action") in ("approved", "withdrawn")
    ]
    (tree / "approvals.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(VERIFIER, tree / "verify.py")


def _write_tar(tree: Path, files: list[Path], out: Path, name: str) -> None:
    """One folder with all files, in the order of their names, without owner and time: same release, same tar."""
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in files:
            entry = tarfile.TarInfo(f"{name}/{path.relative_to(tree).as_posix()}")
            entry.size, entry.mode = path.stat().st_size, 0o755 if path.suffix == ".sh" else 0o644
            with path.open("rb") as content:
                tar.addfile(entry, content)


def _write_oci(tree: Path, files: list[Path], out: Path, directory: Path) -> None:
    blobs = out / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layers = []
    for path in files:
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        layers.append(
            {
                "mediaType": LAYER,
                "digest": f"sha256:{digest}",
                "size": path.stat().st_size,
                "annotations": {"org.opencontainers.image.title": path.relative_to(tree).as_posix()},
            }
        )
        path.replace(blobs / digest)
    config = _blob(blobs, EMPTY, "application/vnd.oci.empty.v1+json")
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT,
        "config": config,
        "layers": layers,
        "annotations": {
            "org.opencontainers.image.title": directory.parent.name,
            "org.opencontainers.image.version": directory.name,
        },
    }
    named = _blob(blobs, json.dumps(manifest).encode(), MANIFEST_TYPE)
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {**named, "artifactType": ARTIFACT, "annotations": {"org.opencontainers.image.ref.name": directory.name}}
        ],
    }
    (out / "index.json").write_text(json.dumps(index) + "\n", encoding="utf-8")
    (out / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', encoding="utf-8")


def _blob(blobs: Path, content: bytes, media_type: str) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}
