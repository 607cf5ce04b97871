"""Keeps requests of several threads within limits of requests and tokens per minute.

    pace = Pace(requests_per_minute=60, tokens_per_minute=90_000)
    pace.wait(tokens=2_100)          # returns when a request of at most so many tokens may be sent
    pace.correct(tokens=-1_500)      # it took fewer
    pace.hold(seconds=20)            # Retry-After: nobody sends before

A request of t tokens moves the time of the next one by the larger of 60 / requests_per_minute and 60 t / tokens_per_minute, so
no minute holds more than the limits and the one request that began before it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Pace:
    """Thread-safe. clock, sleep: seconds; tests give their own."""

    def __init__(self, requests_per_minute: float | None = None, tokens_per_minute: float | None = None,
                 clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep):
        self._per_request_s = 60 / requests_per_minute if requests_per_minute else 0.0
        self._per_token_s = 60 / tokens_per_minute if tokens_per_minute else 0.0
        self._clock, self._sleep, self._lock = clock, sleep, threading.Lock()
        self._next_request_s = self._next_tokens_s = self._held_until_s = float("-inf")

    def wait(self, tokens: int) -> None:
        """Blocks until a request of `tokens` may be sent, and counts it."""
        while True:
            with self._lock:
                now_s = self._clock()
                free_s = max(self._next_request_s, self._next_tokens_s, self._held_until_s)
                if free_s <= now_s:
                    self._next_request_s = now_s + self._per_request_s
                    self._next_tokens_s = now_s + tokens * self._per_token_s
                    return
            self._sleep(min(free_s - now_s, 1.0))  # a correction may bring the time forward

    def correct(self, tokens: int) -> None:
        """Counts more tokens than were announced, or fewer where negative."""
        with self._lock:
            self._next_tokens_s += tokens * self._per_token_s

    def hold(self, seconds: float) -> None:
        """Lets no request go before `seconds` from now."""
        with self._lock:
            self._held_until_s = max(self._held_until_s, self._clock() + seconds)
