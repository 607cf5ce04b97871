"""Limits on time and memory for one query: what `millrace sql` and `millrace.open(lake).sql` share. Time: `stop` is called
until the work gives up; Ctrl-C does so too. Memory: DuckDB's own limit, and on Linux one of the process, for texts that DuckDB
does not count; each of several blocks open at once adds its room to it."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import duckdb

from resources.catalog import CatalogError, Limits, Parameters, QueryResult, ask, memory_gib
from resources.lake import LakeLayout

T = TypeVar("T")

GRACE_SECONDS = 5.0


class TookTooLong(Exception):
    """The time limit passed. `stuck`: the work did not stop when asked; only ending the process stops it."""

    def __init__(self, stuck: bool):
        super().__init__("not done in time")
        self.stuck = stuck


class QuestionInterrupted(KeyboardInterrupt):
    """Ctrl-C was pressed during the work. `stuck`: as in TookTooLong."""

    def __init__(self, stuck: bool):
        super().__init__()
        self.stuck = stuck


def bounded(work: Callable[[], T], stop: Callable[[], None], seconds: float) -> T:
    """Returns the result of `work`, or raises its error. seconds: time limit; 0 for none. Raises TookTooLong after that time,
    Interrupted on Ctrl-C."""
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
        raise QuestionInterrupted(not _ended(thread, done, stop)) from None
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


_LOCK = threading.Lock()
_OPEN: list[int] = []
"""Bytes of room of each open block."""
_BEFORE: list[int] = []
"""The process's limit before the first block was opened, and the memory that it used then."""


@contextmanager
def at_most(gib: float) -> Iterator[None]:
    """Lets the process take at most this much more memory than it uses now."""
    if sys.platform != "linux":
        yield
        return
    room = round(gib * 2**30)
    with _LOCK:
        _OPEN.append(room)
        _limit()
    try:
        yield
    finally:
        with _LOCK:
            _OPEN.remove(room)
            _limit()


def _limit() -> None:
    import resource

    import psutil

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if not _BEFORE:
        _BEFORE.extend((soft, psutil.Process().memory_info().data))
    before, used = _BEFORE
    most = used + sum(_OPEN)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most if _OPEN else before, hard))
    if not _OPEN:
        _BEFORE.clear()


DEFAULT_SECONDS = 300.0
SPARE_GIB = 1.0
"""Memory, in GiB, that the process may use beyond DuckDB's limit: strings made by functions, rows being printed."""


@dataclass(frozen=True)
class Bounds:
    seconds: float = DEFAULT_SECONDS
    """Time limit, 0 for none."""
    memory_gib: float | None = None
    """None for 4 GiB, or half of the machine's memory if that is less."""


class StuckQuestion(CatalogError):
    """The time limit passed, and a function of the query keeps computing: only ending the process stops it at once."""


def bounded_question(lake: LakeLayout, sql: str, parameters: Parameters, bounds: Bounds, use: Callable[[QueryResult], T]) -> T:
    """The result of `use` on the query's answer. `use` reads the rows, in a thread of its own. Raises CatalogError;
    StuckQuestion and bounded.Interrupted if the query cannot be stopped."""
    connections: list[duckdb.DuckDBPyConnection] = []

    def work(spill: Path) -> T:
        def opened(connection: duckdb.DuckDBPyConnection) -> None:
            connections.append(connection)
            stack.enter_context(at_most(memory_gib(connection) + SPARE_GIB))

        with ExitStack() as stack, ask(lake, sql, parameters, Limits(bounds.memory_gib, spill), opened) as answer:
            return use(answer)

    def stop() -> None:
        for connection in connections:
            with suppress(duckdb.Error):  # closed at this very moment
                connection.interrupt()

    try:
        with TemporaryDirectory(prefix="millrace-sql-") as spill:
            return bounded(lambda: work(Path(spill)), stop, bounds.seconds)
    except TookTooLong as error:
        kind = StuckQuestion if error.stuck else CatalogError
        raise kind(
            f"the query was stopped after {bounds.seconds:g} s: ask for less at a time, or allow more with --timeout SECONDS "
            "(timeout= in Python; 0: no limit)"
        ) from None
