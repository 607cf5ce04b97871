"""Pauses between tries: each is twice as long as the one before, up to a longest one."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

Pause = TypeVar("Pause", float, timedelta)


def pause_after(failures: int, first: Pause, longest: Pause) -> Pause:
    """The pause after so many failures in a row, at least one."""
    return min(longest, first * 2 ** min(failures - 1, 20))  # more would overflow


class Backoff:
    """The pauses of one thing that is tried again and again."""

    def __init__(self, first_s: float = 1.0, longest_s: float = 60.0, clock: Callable[[], float] | None = None):
        self.count = 0
        """Pauses since the last success."""
        self.ends_at = 0.0
        """When the last pause ends, by the clock."""
        self._first_s, self._longest_s, self._clock = first_s, longest_s, clock or time.monotonic

    def begin(self) -> float:
        """Begins the next pause; returns its seconds."""
        self.count += 1
        pause_s = pause_after(self.count, self._first_s, self._longest_s)
        self.ends_at = self._clock() + pause_s
        return pause_s

    @property
    def is_over(self) -> bool:
        """Whether the last pause is over; true where there was none."""
        return not self.count or self._clock() >= self.ends_at

    def reset(self) -> None:
        """Ends the pause; the next one is the first again."""
        self.count = 0
