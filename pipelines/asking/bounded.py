"""Runs a function with a time limit; Ctrl-C also stops it, even inside a library call that checks neither.

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
    """The time limit passed. `stuck`: the work did not stop when asked; only ending the process stops it."""

    def __init__(self, stuck: bool):
        super().__init__("not done in time")
        self.stuck = stuck


class Interrupted(KeyboardInterrupt):
    """Ctrl-C was pressed during the work. `stuck`: as in TookTooLong."""

    def __init__(self, stuck: bool):
        super().__init__()
        self.stuck = stuck


def bounded(work: Callable[[], T], stop: Callable[[], None], seconds: float) -> T:
    """Returns the result of `work`, or raises its error. seconds: time limit; 0 for none.

    Raises TookTooLong after that time, Interrupted on Ctrl-C.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()  # after an interrupted join, CPython 3.11 considers the thread ended

    def body() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=body, daemon=True)
    try:
        thread.start()
        in_time = done.wait(seconds or None)
    except KeyboardInterrupt:
        raise Interrupted(not _ended(thread, done, stop)) from None
    if not in_time:
        raise TookTooLong(not _ended(thread, done, stop))
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _ended(thread: threading.Thread, done: threading.Event, stop: Callable[[], None]) -> bool:
    """Stops the work. False if it does not stop, or if a second Ctrl-C gave up waiting."""
    until = time.monotonic() + GRACE_SECONDS
    try:
        while not done.is_set() and time.monotonic() < until:
            stop()
            done.wait(0.1)
    except KeyboardInterrupt:
        return False
    if done.is_set():
        thread.join()
    return done.is_set()
