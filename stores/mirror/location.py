"""Finds the mirror of a lake in a bucket, and makes sure that the bucket can hold a lake. Mirrors lie in MILLRACE_MIRRORS, or
~/.local/share/millrace/lakes, under a digest of url and endpoint."""

import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path

from model_ops.files import write_json
from stores.lake_error import LakeError
from stores.mirror.bucket import PROBE, Bucket, Conflict
from stores.mirror.layout import HOME
from stores.mirror.mirror import Mirror
from stores.s3 import S3Error

MIRRORS = "MILLRACE_MIRRORS"
MARKER = "lake.json"
WHERE = f"{HOME}/bucket.json"


def is_bucket(location: str | Path) -> bool:
    return str(location).startswith("s3://")


def mirror_root(url: str) -> Path:
    """The folder of this machine's mirror of a lake; it is created. Raises LakeError for a url without a bucket."""
    bucket, _, prefix = url.removeprefix("s3://").rstrip("/").partition("/")
    url = f"s3://{bucket}/{prefix}".rstrip("/")
    parts = prefix.split("/") if prefix else []
    if not bucket or "" in parts or {".", ".."} & set(parts) or re.search(r"[?#\s\\]", url):
        raise LakeError(f"lake {url}: s3://BUCKET/PREFIX is expected")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    digest = hashlib.sha256(f"{endpoint}\n{url}".encode()).hexdigest()[:8]
    name = re.sub(r"[^a-zA-Z0-9_.-]", "-", "-".join([bucket, *parts]))[-80:]
    home = Path(os.environ.get(MIRRORS) or Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share") / "millrace" / "lakes")
    root = home.expanduser().resolve() / f"{name}-{digest}"
    where = root / WHERE
    if not where.exists():
        try:
            write_json(where, {"url": url})
        except OSError as error:
            raise LakeError(
                f"no mirror of {url} can be made at {root} ({error.strerror}): set {MIRRORS} to a folder on a disk"
            ) from error
    return root


def url_at(root: Path) -> str | None:
    """The lake that the folder `root` mirrors; None if it is no mirror."""
    try:
        return json.loads((root / WHERE).read_text(encoding="utf-8"))["url"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def connected(root: Path, url: str, version: int, create: bool) -> Mirror:
    """The mirror, brought up to date. Creates the lake in the bucket if there is none and `create` is set. Raises LakeError if
    there is no lake, if the place holds other objects, or if the store cannot hold a lake."""
    mirror = Mirror(root, Bucket(url))
    try:
        marker = mirror.bucket.get(MARKER)
        if marker is None:
            _refuse_or_create(mirror, version, create)
        mirror.pull_file(root / MARKER)
        mirror.pull()
    except S3Error as error:
        raise LakeError(f"the lake {url} cannot be used: {error}") from error
    return mirror


def _refuse_or_create(mirror: Mirror, version: int, create: bool) -> None:
    url = mirror.bucket.url
    if not create:
        raise LakeError(f"no lake at {url}: run a recipe with --lake {url} first, or name another --lake")
    others = [item.key for item in mirror.bucket.objects() if not item.key.startswith(PROBE)]
    if others and MARKER not in others:  # it may be there by now: others create lakes too
        raise LakeError(f"{url} is not empty and is no lake (it has no {MARKER}); give an empty prefix")
    mirror.may_write()
    with suppress(Conflict):  # another machine has just created it
        mirror.bucket.put(MARKER, (json.dumps({"layout_version": version}, indent=2) + "\n").encode(), None)
    (mirror.root / MARKER).unlink(missing_ok=True)
