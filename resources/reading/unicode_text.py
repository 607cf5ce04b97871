"""Decodes UTF-16 text in a stream; other content stays as it is.

    for chunk in utf8(chunks): ...      # UTF-8 bytes

UTF-16 is recognised by its byte order mark, or without one by the zero bytes of its ASCII letters. A mark that UTF-8 text
follows is damage: the first bytes of a broken line. A lone surrogate becomes U+FFFD.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

from resources.reading.decompress import DamagedError

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
    """The content with UTF-16 as UTF-8, chunk by chunk.

    Raises DamagedError after the last whole character of a UTF-16 text with an odd number of bytes, and what `chunks` raises.
    """
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
