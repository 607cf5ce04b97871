"""Work that can be stopped, by a clock or by Ctrl-C, even while a library computes and looks at neither.

    bounded(work, stop, seconds=300)     # the result of work(), which runs in a thread of its own

`stop` is called, again and again, until the work gives up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

GRACE_SECONDS = 5.0


class TookTooLong(Exception):
    """The work was not done in time. `stuck`: it did not stop either, and only the end of the process ends it."""

    def __init__(self, stuck: bool):
        super().__init__("not done in time")
        self.stuck = stuck


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while the work was going on. `stuck`: as above."""

    def __init__(self, stuck: bool):
        super().__init__()
        self.stuck = stuck


def bounded(work: Callable[[], T], stop: Callable[[], None], seconds: float) -> T:
    """The result of `work`, or the error that it raised. seconds: 0 for as long as it takes.

    Raises TookTooLong after that time, Interrupted on Ctrl-C.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, daemon=True)
    try:
        thread.start()
        thread.join(seconds or None)
    except KeyboardInterrupt:
        raise Interrupted(_stopped(thread, stop)) from None
    if thread.is_alive():
        raise TookTooLong(_stopped(thread, stop))
    if errors:
        raise errors[0]
    return results[0]


def _stopped(thread: threading.Thread, stop: Callable[[], None]) -> bool:
    """Stops the work; True where it goes on all the same."""
    until = time.monotonic() + GRACE_SECONDS
    while thread.is_alive() and time.monotonic() < until:
        stop()
        thread.join(0.1)
    return thread.is_alive()
