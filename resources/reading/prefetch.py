"""Fetches objects ahead, in the order given: for many small objects on S3.

    for entry, opened in prefetched(entries):
        with opened() as file: ...             # raises OSError if this object cannot be read; the others are not affected

Small S3 objects are fetched whole, AT_ONCE at a time and at most AHEAD_BYTES together; larger ones are read in ranges
(stores/s3.py). Local files are opened in turn.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from typing import BinaryIO, TypeVar

from resources.reading.sources import Place, open_object
from stores import s3

AT_ONCE = s3.CONNECTIONS
AHEAD_BYTES = 64 << 20
SMALL_BYTES = s3.RANGE_BYTES
SILENT = 8
"""After this many unanswered requests in a row, the other objects are left for the next run."""

Item = TypeVar("Item", bound=Place)
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
        error = _outcome(content)
        silent = silent + 1 if isinstance(error, s3.UnreachableError) else 0
        if silent == SILENT:
            for _, others in waiting:
                if others is not None:
                    others.cancel()
        yield item, partial(_whole, content, item.uri)


def _outcome(content: Future[bytes]) -> BaseException | None:
    """Waits for an object. Interruptions (Ctrl-C, a stop) propagate."""
    return UNASKED if content.cancelled() else content.exception()


UNASKED = s3.UnreachableError("the endpoint did not answer for other objects")


def _whole(content: Future[bytes], uri: str) -> BinaryIO:
    if content.cancelled():
        _not_asked(uri)
    return io.BytesIO(content.result())


def _not_asked(uri: str) -> BinaryIO:
    raise s3.UnreachableError(f"{uri}: left for the next run, since {UNASKED}")
