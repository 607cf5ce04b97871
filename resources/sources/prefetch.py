"""Fetches objects ahead, in the order given, and hashes a file while it is read. Small S3 objects are fetched whole, AT_ONCE at
a time and at most AHEAD_BYTES together; larger ones are read in ranges (stores/s3.py). Local files are opened in turn.

    for entry, opened in prefetched(entries):
        with opened() as file: ...             # raises OSError if this object cannot be read; the others are not affected
"""

import hashlib
import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, BinaryIO, TypeVar

from resources.sources.sources import ObjectVersion, open_object
from stores import s3

AT_ONCE = s3.CONNECTIONS
AHEAD_BYTES = 64 << 20
SMALL_BYTES = s3.RANGE_BYTES
SILENT = 8
"""After this many unanswered requests in a row, the other objects are left for the next run."""

Item = TypeVar("Item", bound=ObjectVersion)
Opened = Callable[[], AbstractContextManager[BinaryIO]]


def prefetched(items: Iterable[Item]) -> Iterator[tuple[Item, Opened]]:
    """Every item with a function that opens its content, in order."""
    source = iter(items)
    waiting: deque[tuple[Item, Future[bytes] | None]] = deque()
    ahead = silent = 0
    while True:
        while len(waiting) < AT_ONCE and ahead < AHEAD_BYTES and (item := next(source, None)) is not None:
            small = item.uri.startswith(s3.SCHEMES) and item.bytes <= SMALL_BYTES and silent < SILENT
            waiting.append((item, s3.start_fetch(item.uri, item.etag) if small else None))
            ahead += item.bytes if small else 0
        if not waiting:
            return
        item, content = waiting.popleft()
        if content is None:
            unanswered = silent >= SILENT and item.uri.startswith(s3.SCHEMES)
            yield item, partial(_not_asked, item.uri) if unanswered else partial(open_object, item)
            continue
        ahead -= item.bytes
        error = UNASKED if content.cancelled() else content.exception()
        silent = silent + 1 if isinstance(error, s3.UnreachableError) else 0
        if silent == SILENT:
            for _, others in waiting:
                if others is not None:
                    others.cancel()
        yield item, partial(_whole, content, item.uri)


UNASKED = s3.UnreachableError("the endpoint did not answer for other objects")


def _whole(content: Future[bytes], uri: str) -> BinaryIO:
    if content.cancelled():
        _not_asked(uri)
    return io.BytesIO(content.result())


def _not_asked(uri: str) -> BinaryIO:
    raise s3.UnreachableError(f"{uri}: left for the next run, since {UNASKED}")


MOST_LEFT = 64 << 20
"""Most bytes to read for the digest after a reader has stopped before the end."""
READ_BYTES = 4 << 20


class DigestReader:
    """A file that is read once from beginning to end."""

    def __init__(self, file: Any):
        self._file, self._digest, self._ended = file, hashlib.sha256(), False

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size` of them."""
        content = self._file.read(size)
        self._digest.update(content)
        self._ended = not content and size > 0
        return content

    def digest(self) -> str:
        """sha256 of the whole content; "" if more than MOST_LEFT bytes were left unread."""
        left = MOST_LEFT
        while not self._ended and left > 0:
            left -= len(self.read(READ_BYTES))
        return self._digest.hexdigest() if self._ended else ""
