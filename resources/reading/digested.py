"""Hashes a file while it is read, so that the digest costs no second pass.

    file = Digested(raw)
    while chunk := file.read(4 << 20): ...
    file.digest()
"""

from __future__ import annotations

import hashlib
from typing import Any

MOST_LEFT = 64 << 20
"""Most bytes to read for the digest after a reader has stopped before the end."""
READ_BYTES = 4 << 20


class Digested:
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
