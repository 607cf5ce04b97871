"""Requests that wait in the front while no server answers: for how long, how many, and what wakes them."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from model_ops.machine import Backoff

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
MOST_WAITING_BYTES = 256 << 20
"""Bodies of waiting requests together: further requests are refused."""
WAITS_FOR = ("POST", "/v1/")
"""Other requests ask for the state of a server, and whoever asks has to hear that there is none."""


class WaitingRoom:
    """wait_s: seconds that a request waits at most; 0: none does. most_bytes: of the bodies that wait together."""

    def __init__(self, wait_s: float, most_bytes: int = MOST_WAITING_BYTES):
        self.wait_s, self.most_bytes = wait_s, most_bytes
        self.requests, self._bytes, self._ended = 0, 0, False
        self._changed = asyncio.Event()

    def begin(self, method: str, path: str, size: int) -> WaitingRequest:
        """The waiting of one request, of which nothing has passed yet."""
        waits = method == WAITS_FOR[0] and path.startswith(WAITS_FOR[1])
        return WaitingRequest(self, size, time.monotonic() + self.wait_s if waits else 0.0)

    def wake(self) -> None:
        """Lets every waiting request try again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        """Waiting requests, and later ones, are refused."""
        self._ended = True
        self.wake()

    async def _pause(self, size: int, seconds: float) -> bool:
        if self._ended or seconds <= 0 or self._bytes + size > self.most_bytes:
            return False
        self.requests, self._bytes = self.requests + 1, self._bytes + size
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds)
        finally:
            self.requests, self._bytes = self.requests - 1, self._bytes - size
        return not self._ended


class WaitingRequest:
    """until: when its time is over (time.monotonic)."""

    def __init__(self, waiting: WaitingRoom, size: int, until: float):
        self._waiting, self._size, self._until = waiting, size, until
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)

    async def again(self) -> bool:
        """Waits; whether the request may be tried again."""
        seconds = min(self._backoff.begin(), self._until - time.monotonic())
        return await self._waiting._pause(self._size, seconds)
