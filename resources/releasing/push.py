"""Pushes a release to a bucket or to the Hugging Face Hub: weights first, the release's manifest last.

What is pushed is a package: release, target and drafter at their paths in a lake, with the signatures where there are any, so
that its scripts work and verify.py verifies it. Whoever finds the manifest finds all of it. Files that are there already with
the same content are not sent again, so a push that was stopped continues, and a second push sends nothing.

In a bucket (settings and errors of stores/s3.py) a file is there if its object has the same size and the ETag that this file
gets: the MD5 of its content, or, of a file in several parts, of their MD5s. Stores that compute other ETags (encryption with
keys of a KMS) get the file again.

A missing repository of the Hub is created as a private one. Each call of `send` is one commit; large files are uploaded before
it, one by one, and the Hub keeps those of a push that was stopped. huggingface_hub is imported on first use."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal, Protocol

from model_ops.jobs import size
from resources.endpoints import EndpointLog, recheck, recheck_unsigned
from resources.lake import LakeLayout
from resources.manifests import SIGNATURE, SIGNED_PROVENANCE
from resources.releases import ReleaseError
from resources.signing import check_signature, is_signed, lay_out, release_files, trusted_keys
from stores import s3
from stores.mirror.bucket import PART_BYTES, Bucket
from stores.s3 import SCHEMES

VERIFIER = Path(__file__).with_name("verify_package.py")
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT = "application/vnd.millrace.release.v1"
LAYER = "application/octet-stream"
EMPTY = b"{}"


@dataclass(frozen=True)
class Package:
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
        title = {"org.opencontainers.image.title": path.relative_to(tree).as_posix()}
        size_ = path.stat().st_size
        layers.append({"mediaType": LAYER, "digest": f"sha256:{digest}", "size": size_, "annotations": title})
        path.replace(blobs / digest)
    config = _blob(blobs, EMPTY, "application/vnd.oci.empty.v1+json")
    about = {"title": directory.parent.name, "version": directory.name}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT,
        "config": config,
        "layers": layers,
        "annotations": {f"org.opencontainers.image.{name}": value for name, value in about.items()},
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


WEIGHTS = (".safetensors", ".gguf")
CARD = "README.md"


@dataclass(frozen=True)
class PushReport:
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


def push_release(lake: LakeLayout, directory: Path, to: str) -> PushReport:
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
                files_ = {path: everything[path] for path in chosen}
                destination.send(files_, f"{about} of {directory.parent.name} {directory.name}")
                sent += sum(path.stat().st_size for path in files_.values())
    return PushReport(len(missing), sent, len(everything) - len(missing), signed)


def destination_of(to: str) -> Destination:
    """Raises ReleaseError for anything else than hf://ORG/REPO and s3://BUCKET/PREFIX."""
    if to.startswith(SCHEME):
        return HubRepository.of(to)
    if to.startswith(SCHEMES):
        return S3Prefix.of(to)
    raise ReleaseError(f"{to} is no place to push to: name hf://ORG/REPOSITORY or s3://BUCKET/PREFIX")


def _in_order(paths: list[str], manifest: str) -> list[tuple[str, list[str]]]:
    """Weights, everything else, the manifest."""
    weights = [path for path in paths if path.endswith(WEIGHTS)]
    others = [path for path in paths if path not in weights and path != manifest]
    return [("weights", weights), ("files", others), ("manifest", [path for path in paths if path == manifest])]


@dataclass(frozen=True)
class S3Prefix:
    bucket: Bucket

    @classmethod
    def of(cls, to: str) -> S3Prefix:
        name, prefix = s3.parts(to)
        if not name or not prefix.strip("/"):
            raise ReleaseError(f"{to} names no prefix of a bucket: name one, such as s3://BUCKET/releases/tutor")
        return cls(Bucket(f"s3://{name}/{prefix.strip('/')}"))

    def missing(self, files: Mapping[str, Path]) -> list[str]:
        there = {item.key: (item.bytes, item.etag) for item in self.bucket.objects()}
        return [
            path
            for path, file in files.items()
            if path not in there or there[path][0] != file.stat().st_size or there[path][1].strip('"') != etag_of(file)
        ]

    def send(self, files: Mapping[str, Path], about: str) -> None:
        self.bucket.upload(files.items())


def etag_of(file: Path) -> str:
    """The ETag that S3 gives a file as `Bucket.upload` sends it (s3fs: at once below two parts, else in parts)."""
    from s3fs.core import calculate_chunksize

    size = file.stat().st_size
    part = calculate_chunksize(size, chunksize=PART_BYTES)
    with file.open("rb") as content:
        if size < min(5 * 2**30, 2 * part):
            return hashlib.file_digest(content, "md5").hexdigest()
        digests = [hashlib.md5(piece).digest() for piece in iter(lambda: content.read(part), b"")]
    return f"{hashlib.md5(b''.join(digests)).hexdigest()}-{len(digests)}"


SCHEME = "hf://"
TOKEN, ENDPOINT = "HF_TOKEN", "HF_ENDPOINT"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class HubRepository:
    name: str
    """ORG/REPOSITORY."""
    token: str

    @classmethod
    def of(cls, to: str) -> HubRepository:
        name = to.removeprefix(SCHEME).strip("/")
        if not _NAME.fullmatch(name):
            raise ReleaseError(f"{to} names no repository of the Hub: name hf://ORG/REPOSITORY")
        token = os.environ.get(TOKEN, "").strip()
        if not token:
            raise ReleaseError(f"there is no token to push to {to} with: set {TOKEN} to one that may write there")
        return cls(name, token)

    def missing(self, files: Mapping[str, Path]) -> list[str]:
        """Makes the repository where there is none."""
        with self._explained():
            self._api().create_repo(self.name, private=True, exist_ok=True)
            entries = self._api().list_repo_tree(self.name, recursive=True)
            there = {entry.path: entry for entry in entries if hasattr(entry, "blob_id")}
        return [path for path, file in files.items() if path not in there or not _is_same(there[path], file)]

    def send(self, files: Mapping[str, Path], about: str) -> None:
        from huggingface_hub import CommitOperationAdd

        added = [CommitOperationAdd(path_in_repo=path, path_or_fileobj=str(file)) for path, file in files.items()]
        with self._explained():
            for each in added:
                self._api().preupload_lfs_files(self.name, additions=[each])
            self._api().create_commit(self.name, operations=added, commit_message=f"millrace push: {about}")

    def _api(self) -> Any:
        from huggingface_hub import HfApi

        return HfApi(endpoint=os.environ.get(ENDPOINT) or None, token=self.token)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of the Hub as one sentence. Neither the token nor a body of an answer is part of it."""
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        try:
            yield
        except (HfHubHTTPError, RuntimeError) as error:  # a failed upload is a RuntimeError with the Hub's answer as its cause
            answered = error if isinstance(error, HfHubHTTPError) else error.__cause__
            status = int(getattr(getattr(answered, "response", None), "status_code", None) or 0)
            remedy = {
                401: f"{TOKEN} is not valid",
                403: f"{TOKEN} may not write there",
                404: "there is no such organisation",
                413: "a file is larger than the Hub takes",
                429: "too many requests: push again later",
            }
            raise ReleaseError(
                f"the Hub refuses the push to {self.name} (status {status or 'unknown'}): "
                f"{remedy.get(status, 'push again later; what was sent is kept')}"
            ) from error
        except OfflineModeIsEnabled as error:
            raise ReleaseError("HF_HUB_OFFLINE is set, so nothing can be pushed to the Hub: unset it") from error
        except (OSError, *HfHubHTTPError.__bases__) as error:  # its bases: the errors of whichever library speaks HTTP
            raise ReleaseError(
                f"the Hub cannot be reached ({type(error).__name__}): push again later; what was sent is kept"
            ) from error


def _is_same(entry: Any, file: Path) -> bool:
    """Whether the repository's file has this content: by sha256 for large files, else by git's id of the blob."""
    if entry.size != file.stat().st_size:
        return False
    with file.open("rb") as content:
        if entry.lfs is not None:
            return entry.lfs.sha256 == hashlib.file_digest(content, "sha256").hexdigest()
        return entry.blob_id == hashlib.sha1(b"blob %d\0" % entry.size + content.read()).hexdigest()
