"""Runs an iterator in a thread, a few items ahead of its consumer, so that reading and computing overlap. An exception of the
iterator is raised where its next item would have come. A consumer that stops early stops the thread.
"""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

_WAIT_SECONDS = 0.1
"""How soon the thread notices that its consumer has stopped."""


def read_ahead(source: Iterable[T], items: int) -> Iterator[T]:
    """The items of `source`, at most `items` of them waiting in memory."""
    ready: queue.Queue[tuple[bool, T | BaseException | None]] = queue.Queue(items)
    stopped = threading.Event()

    def hand_over(more: bool, value: T | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put((more, value), timeout=_WAIT_SECONDS)
                return
            except queue.Full:
                continue

    def read() -> None:
        try:
            for item in source:
                hand_over(True, item)
                if stopped.is_set():
                    return
            hand_over(False, None)
        except BaseException as error:  # raised again where the items are used
            hand_over(False, error)

    thread = threading.Thread(target=read, name="read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            more, value = ready.get()
            if more:
                yield value
            elif value is None:
                return
            else:
                raise value
    finally:
        stopped.set()
        thread.join()
