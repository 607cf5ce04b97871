"""Where captured objects lie: a directory or a prefix on S3.

put() may be repeated after a crash: the object has the same name and content then. Errors are OSErrors of one sentence;
CaptureError is what a person has to change before traffic can be captured.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from model_ops.files import replaced
from model_ops.jobs import Misuse
from stores.mirror.bucket import Bucket, Conflict
from stores.s3 import SCHEMES


class Store(Protocol):
    @property
    def place(self) -> str:
        """The directory or uri, as people know it."""

    def put(self, name: str, content: bytes) -> None:
        """Raises OSError where the object cannot be written now."""


@dataclass(frozen=True)
class DiskStore:
    place: str

    def put(self, name: str, content: bytes) -> None:
        with replaced(Path(self.place) / name) as temporary:
            temporary.write_bytes(content)


@dataclass(frozen=True)
class BucketStore:
    place: str

    def put(self, name: str, content: bytes) -> None:
        with suppress(Conflict):  # written before a crash by another version of this program: names are unique to a segment
            Bucket(self.place).put(name, content, was=None)


def open_store(place: str) -> Store:
    """Raises CaptureError for a place that is neither a directory nor on S3."""
    if place.startswith(SCHEMES):
        return BucketStore(f"s3://{place.split('://', 1)[1]}".rstrip("/"))
    if "://" in place and not place.startswith("file://"):
        raise CaptureError(
            f"{place.split('://')[0]}:// is no place for captured traffic: give a directory or s3://BUCKET/PREFIX"
        )
    directory = Path(place.removeprefix("file://")).expanduser().absolute()
    if directory.exists() and not directory.is_dir():
        raise CaptureError(f"{directory} is a file: give a directory or s3://BUCKET/PREFIX")
    return DiskStore(str(directory))


class CaptureError(Misuse):
    """The capture layer cannot start as it was asked to; the message says what to change."""
