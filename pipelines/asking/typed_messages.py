"""What a person types in a terminal, a message at a time: lines that come at once, as a paste does, are one message.

Without a terminal each line of standard input is a message. GNU readline takes a paste as one from terminals that mark it;
elsewhere lines are one message where each follows within GAP_S of the one before.
"""

import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from resources.records import visible

GAP_S = 0.05
"""Nobody types a line in so short a time."""


class TypedMessages:
    """A reader of messages."""

    def __init__(self) -> None:
        self._waiting: deque[str] = deque()
        self._is_terminal = sys.stdin.isatty()
        if self._is_terminal:
            with suppress(ImportError):
                import readline

                readline.parse_and_bind("set enable-bracketed-paste on")

    def __call__(self, prompt: str) -> str:
        if not self._waiting:
            lines = [input(prompt)]
            try:
                while self._is_terminal and _is_readable():
                    lines.append(input())
            except EOFError:
                self._waiting.append("")
            return "\n".join(lines)
        if not (text := self._waiting.popleft()):
            raise EOFError
        print(f"{prompt}{visible(text.rstrip(), lines=True)}", flush=True)
        return text

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """For as long as nothing else reads the terminal."""
        over = threading.Event()
        thread = threading.Thread(target=self._wait, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _wait(self, over: threading.Event) -> None:
        last_s, text = 0.0, "none yet"
        while self._is_terminal and text and not over.is_set():
            if not _is_readable():
                continue
            text, now_s = "", time.monotonic()
            with suppress(OSError):  # the terminal was closed
                text = os.read(sys.stdin.fileno(), 1 << 16).decode(errors="replace")
            if text and self._waiting and now_s - last_s < GAP_S:
                self._waiting[-1] += text
            else:
                self._waiting.append(text)
            last_s = now_s


def _is_readable() -> bool:
    return bool(select.select([sys.stdin], [], [], GAP_S)[0])
