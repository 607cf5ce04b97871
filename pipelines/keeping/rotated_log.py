"""A log file of bounded size that also remembers its last lines.

    log = RotatedLog(Path("lake/.dagster/up/daemon.log"))
    log.write("a line")                 # a disk that is full loses lines, and nothing else
    log.last_lines()

At MAX_BYTES the file becomes NAME.log.1, the older ones move up, and the oldest of KEPT files is deleted.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

MAX_BYTES = 10 << 20
KEPT = 5
"""Files of one log, the current one included."""
REMEMBERED = 20


class RotatedLog:
    """Several threads may write. max_bytes: size of one file."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES):
        self.path, self._max_bytes = path, max_bytes
        self._lines: deque[str] = deque(maxlen=REMEMBERED)
        self._lock = threading.Lock()

    def write(self, line: str) -> None:
        """Appends a line. A process whose log cannot be written goes on."""
        with self._lock:
            self._lines.append(line)
            with suppress(OSError):
                if self.path.exists() and self.path.stat().st_size + len(line) > self._max_bytes:
                    self._rotate()
                with self.path.open("a", encoding="utf-8", errors="replace") as file:
                    file.write(f"{line}\n")

    def last_lines(self) -> list[str]:
        """The newest lines that this object wrote, oldest first."""
        with self._lock:
            return list(self._lines)

    def forget_lines(self) -> None:
        """Lines written so far are no longer among the last ones: a new process writes from here on."""
        with self._lock:
            self._lines.clear()

    def _rotate(self) -> None:
        for number in range(KEPT - 2, -1, -1):
            older = self.path.with_name(f"{self.path.name}.{number}") if number else self.path
            if older.exists():
                older.replace(self.path.with_name(f"{self.path.name}.{number + 1}"))
