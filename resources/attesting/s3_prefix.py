"""A prefix of a bucket to which releases are pushed. Settings and errors are those of stores/s3.py.

    prefix = S3Prefix.of("s3://company/releases/tutor")
    prefix.send({path: file for path in prefix.missing(files)}, "weights")

A file is there if its object has the same size and the ETag that this file gets: the MD5 of its content, or, of a file in
several parts, of their MD5s. Stores that compute other ETags (encryption with keys of a KMS) get the file again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from resources.releasing.release import ReleaseError
from stores import s3
from stores.mirror.bucket import PART_BYTES, Bucket


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
        return [path for path, file in files.items()
                if path not in there or there[path][0] != file.stat().st_size or there[path][1].strip('"') != etag_of(file)]

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
