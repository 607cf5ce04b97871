"""Decompresses a log object in chunks, and decodes UTF-16; everything before a damaged end is still returned (Python's own gzip
reader drops it). gzip and zstd are recognised by their first bytes, UTF-16 by its mark or by the zero bytes of its ASCII
letters. A lone surrogate becomes U+FFFD."""

import codecs
import re
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


_UTF_32 = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
_LOOKED_AT = 4_096
_ASCII = 0.5
"""Without a mark, at least this share of the characters must be ASCII, and the other bytes must not be zero."""
_ONE_BYTE_EACH = re.compile(rb"[\t\x20-\x7e]{32}")
"""ASCII as UTF-8 writes it; Chinese in UTF-16 has such a run of bytes once in ten million places."""


def utf16_of(head: bytes) -> str | None:
    """utf-16-le or utf-16-be, by the first bytes of a text; None for anything else, UTF-32 too."""
    if head.startswith(_UTF_32):
        return None
    head = head[: _LOOKED_AT // 2 * 2]
    even, odd = head[::2], head[1::2]
    for mark, high, low, name in ((codecs.BOM_UTF16_LE, odd, even, "utf-16-le"), (codecs.BOM_UTF16_BE, even, odd, "utf-16-be")):
        units = list(zip(high, low, strict=False))
        letters = sum(first == 0 and (32 <= second < 127 or second in b"\t\r\n") for first, second in units)
        if head.startswith(mark):
            return None if _ONE_BYTE_EACH.search(head) else name
        if len(units) >= 2 and letters >= _ASCII * len(units) and all(map(any, units)):
            return name
    return None


def utf8(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The content with UTF-16 as UTF-8, chunk by chunk. Raises DamagedError after the last whole character of a UTF-16 text
    with an odd number of bytes, and what `chunks` raises."""
    head = next(chunks, b"")
    encoding = utf16_of(head)
    if encoding is None:
        yield head
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    yield decoder.decode(head).removeprefix("\ufeff").encode()
    for chunk in chunks:
        yield decoder.decode(chunk).encode()
    odd = len(decoder.getstate()[0]) % 2
    yield decoder.decode(b"", final=True).encode()
    if odd:
        raise DamagedError("the UTF-16 text ends within a character")
