"""Decompresses a log object in chunks; everything before a damaged end is still returned.

    for chunk in decompressed(file): ...

gzip and zstd are recognised by their first bytes, not by name; several members or frames in one file are all read. Python's
own gzip reader drops what it has decompressed when a file ends early, so this module has its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import zstandard

READ_BYTES = 4 << 20
GIVEN_BYTES = 8 << 20
"""Most bytes per chunk, however well they were compressed."""
_ZSTD_BYTES = 2 << 10
"""zstd input bytes per step: its reader returns all output of one step, at worst 32,000 times as much."""

GZIP, ZSTD = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"


class DamagedError(Exception):
    """The compressed stream ends early or is damaged; everything before that was already returned."""


def decompressed(file: Any) -> Iterator[bytes]:
    """Chunks of content. Raises DamagedError after the last readable chunk."""
    head = file.read(READ_BYTES)
    if head.startswith(GZIP):
        yield from _gzip(file, head)
    elif head.startswith(ZSTD):
        yield from _zstd(file, head)
    else:
        while head:
            yield head
            head = file.read(READ_BYTES)


def _gzip(file: Any, data: bytes) -> Iterator[bytes]:
    member, fed, content = zlib.decompressobj(wbits=31), False, b""
    while data or len(content) == GIVEN_BYTES:
        try:
            content = member.decompress(data, GIVEN_BYTES)
        except zlib.error as error:
            raise DamagedError(f"the gzip stream is damaged ({error})") from error
        fed = True
        if content:
            yield content
        data = member.unconsumed_tail
        if member.eof:
            data = member.unused_data.lstrip(b"\0")  # padding between or after members
            member, fed, content = zlib.decompressobj(wbits=31), False, b""
        data = data or file.read(READ_BYTES)
    if fed:
        raise DamagedError("the gzip stream ends early")


def _zstd(file: Any, data: bytes) -> Iterator[bytes]:
    frame, fed = zstandard.ZstdDecompressor().decompressobj(), False
    while data:
        start = 0
        while start < len(data):
            bite = data[start : start + _ZSTD_BYTES]
            try:
                content = frame.decompress(bite)
            except zstandard.ZstdError as error:
                raise DamagedError(f"the zstd stream is damaged ({error})") from error
            fed = True
            if content:
                yield content
            start += len(bite)
            if frame.eof:
                start -= len(frame.unused_data)
                frame, fed = zstandard.ZstdDecompressor().decompressobj(), False
        data = file.read(READ_BYTES)
    if fed:
        raise DamagedError("the zstd stream ends early")
