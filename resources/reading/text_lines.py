"""Splits a text into lines while it is read, for containers whose records are not JSON lines.

    damage = []
    for line in text_lines(chunks, damage): ...      # with their ends; afterwards damage has the DamagedError, if any

Bytes that are not UTF-8 become surrogates. A line longer than RECORD_BYTES comes in pieces; a line that damage cuts off is left
out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from resources.reading.decompress import DamagedError
from resources.reading.log_reader import RECORD_BYTES


def text_lines(chunks: Iterator[bytes], damage: list[DamagedError]) -> Iterator[str]:
    """The lines of a text, each with its end."""
    left, more = b"", True
    while more:
        try:
            chunk = next(chunks, b"")
        except DamagedError as error:
            damage.append(error)
            return
        more = bool(chunk)
        left += chunk
        cut = left.rfind(b"\n") + 1 if more else len(left)
        if not cut and len(left) <= RECORD_BYTES:
            continue
        block, left = left[: cut or len(left)], left[cut or len(left) :]
        yield from re.findall(r"[^\n]*\n|[^\n]+", block.decode("utf-8", "surrogateescape"))
