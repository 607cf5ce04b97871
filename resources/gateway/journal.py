"""The journal: answered exchanges on the local disk, until they lie in the store.

A frame is written with one call of the operating system, so it survives the end of this process at any moment; the shipper
flushes the files to the disk every second, which is what a power failure can take. Segments are written as <run>-<n>.open and
renamed to .ready when they are full or old; the shipper (shipper.py) turns .ready segments into objects and deletes them.

The journal is the bounded queue of the capture layer: what would make it longer than most_bytes is not kept. What was not kept
is counted by reason, and the counts follow as frames of kind `note`: at once where there is room, and beyond most_bytes after
pauses of 1, 2, 4, ... 60 seconds, so that a kill takes the counts of a minute at most."""

import contextlib
import json
import os
import re
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from model_ops.files import replacement
from model_ops.jobs import Misuse
from model_ops.machine import Backoff
from stores.mirror.bucket import Bucket, Conflict
from stores.s3 import SCHEMES

MAGIC = b"mrc1"
HEAD = struct.Struct(">4sIIII")
"""MAGIC, bytes of meta, request and answer, crc32 of the three."""
OPEN, READY = ".open", ".ready"
STATUS = "shipped.json"
"""What the shipper says of itself, in the journal's directory."""
ROOM = 0.9
"""Below this share of its limit, a journal that was full says at once what it did not keep."""
JOURNAL_BYTES, SEGMENT_BYTES, SEGMENT_S = 1 << 30, 32 << 20, 30.0


@dataclass(frozen=True)
class Frame:
    meta: dict[str, Any]
    """What is known of the exchange, without its texts."""
    request: bytes
    answer: bytes
    """`request`, `answer`: bodies as they were sent."""


class Journal:
    """Writes frames. Methods may be called from any thread. run: begins the names of this journal's segments; unique to this
    process. written: frames of exchanges and feedback. lost: how many were not, by reason: `journal_full` (most_bytes), `disk`
    (the disk refused a write)."""

    def __init__(
        self,
        directory: Path,
        run: str,
        most_bytes: int = JOURNAL_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        segment_s: float = SEGMENT_S,
    ):
        self.directory, self.run, self.most_bytes = directory, run, most_bytes
        self.segment_bytes, self.segment_s = segment_bytes, segment_s
        self.written, self.lost = 0, Counter[str]()
        self._untold, self._untold_since = Counter[str](), 0.0
        self._backoff = Backoff()  # between two notes of a journal that is full
        self._lock = threading.Lock()
        self._handle, self._number, self._size, self._began = -1, 0, 0, 0.0
        self._ready_bytes = _bytes_in(directory)

    def append(self, meta: dict[str, Any], request: bytes = b"", answer: Sequence[bytes] = ()) -> bool:
        """Whether the frame was written. Never raises: a request does not fail because it cannot be captured."""
        head, parts = _frame(meta, request, answer)
        with self._lock:
            if self._size + self._ready_bytes + sum(map(len, parts)) > self.most_bytes:
                return self._lose("journal_full")
            if (self._untold and not self._tell()) or not self._write([head, *parts]):
                return self._lose("disk")
            self.written += 1
            if self._size >= self.segment_bytes:
                self._close_segment()
            return True

    def lose(self, reason: str) -> None:
        """Counts an exchange that its caller could not keep. reason: a word of lower-case letters and underscores."""
        with self._lock:
            self._lose(reason)

    def tick(self) -> None:
        """To be called about once a second: closes a segment that is old, and looks how much the shipper has left."""
        with self._lock:
            self._ready_bytes = _bytes_in(self.directory, READY)
            if self._handle >= 0 and time.monotonic() - self._began >= self.segment_s:
                self._close_segment()
            has_room = self._size + self._ready_bytes < ROOM * self.most_bytes
            if has_room:
                self._backoff.reset()
            if self._untold and self._backoff.is_over:
                self._backoff.begin()
                self._tell()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not in the store yet."""
        return self._size + self._ready_bytes

    def close(self) -> None:
        """Makes the last segment ready."""
        with self._lock:
            if self._untold:
                self._tell()
            self._close_segment()

    def _lose(self, reason: str) -> bool:
        if not self._untold:
            self._untold_since = time.time()
        self.lost[reason] += 1
        self._untold[reason] += 1
        return False

    def _tell(self) -> bool:
        """Writes a note for each reason. Whether all were written."""
        for reason, count in list(self._untold.items()):
            note = {"kind": "note", "not_kept": {reason: count}, "since": self._untold_since, "at": time.time()}
            head, parts = _frame(note)
            if not self._write([head, *parts]):
                return False
            del self._untold[reason]
        return True

    def _write(self, parts: list[bytes]) -> bool:
        length = sum(map(len, parts))
        try:
            if self._handle < 0:
                self._open_segment()
            if os.writev(self._handle, parts) == length:
                self._size += length
                return True
            os.ftruncate(self._handle, self._size)  # the disk is full: no half frame stays
        except OSError:
            with contextlib.suppress(OSError):
                if self._handle >= 0:
                    os.ftruncate(self._handle, self._size)
        return False

    def _open_segment(self) -> None:
        self._number += 1
        path = self.directory / f"{self.run}-{self._number:06}{OPEN}"
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._size, self._began = 0, time.monotonic()

    def _close_segment(self) -> None:
        if self._handle < 0:
            return
        os.close(self._handle)
        make_ready(self.directory / f"{self.run}-{self._number:06}{OPEN}")
        self._handle, self._ready_bytes, self._size = -1, self._ready_bytes + self._size, 0


def make_ready(segment: Path) -> None:
    """Hands a finished segment to the shipper; an empty one is deleted."""
    with contextlib.suppress(FileNotFoundError):  # a second process may clean up after the same dead one
        if segment.stat().st_size:
            segment.rename(segment.with_suffix(READY))
        else:
            segment.unlink()


def frames(segment: Path) -> Iterator[Frame]:
    """The frames of a segment, in order. Bytes that are no frame (a disk that was full, a power failure) are passed over, and
    counted in a last frame of kind `note` with the reason `damaged`."""
    content, place, damaged = segment.read_bytes(), 0, 0
    while place < len(content):
        frame, end = _frame_at(content, place)
        if frame is None:
            damaged += 1
            following = content.find(MAGIC, place + 1)
            place = following if following >= 0 else len(content)
            continue
        yield frame
        place = end
    if damaged:
        at = segment.stat().st_mtime
        yield Frame({"kind": "note", "not_kept": {"damaged": damaged}, "since": at, "at": at}, b"", b"")


def _frame(meta: dict[str, Any], request: bytes = b"", answer: Sequence[bytes] = ()) -> tuple[bytes, list[bytes]]:
    said = b"".join(answer) if len(answer) != 1 else answer[0]
    parts = [json.dumps(meta, separators=(",", ":")).encode(), request, said]
    check = 0
    for part in parts:
        check = zlib.crc32(part, check)
    return HEAD.pack(MAGIC, *map(len, parts), check), parts


def _frame_at(content: bytes, place: int) -> tuple[Frame | None, int]:
    """The frame at a place and where it ends; None if there is no whole one."""
    if place + HEAD.size > len(content):
        return None, place
    magic, *lengths, check = HEAD.unpack_from(content, place)
    begin, end = place + HEAD.size, place + HEAD.size + sum(lengths)
    if magic != MAGIC or end > len(content) or zlib.crc32(memoryview(content)[begin:end]) != check:
        return None, place
    cuts = (begin, begin + lengths[0], begin + lengths[0] + lengths[1], end)
    meta, request, answer = (content[first:last] for first, last in pairwise(cuts))
    return Frame(json.loads(meta), request, answer), end


def segments(directory: Path, suffix: str, run: str = "") -> list[Path]:
    """Segments of a kind, of one run if it is named, in the order in which they were written."""
    return sorted(path for path in directory.glob(f"{run}*{suffix}") if re.fullmatch(r"[\w-]+-\d{6}", path.stem))


def _bytes_in(directory: Path, *suffixes: str) -> int:
    size = 0
    for path in directory.iterdir():
        if path.suffix in (suffixes or (OPEN, READY)):
            with contextlib.suppress(FileNotFoundError):
                size += path.stat().st_size
    return size


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
        with replacement(Path(self.place) / name) as temporary:
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
