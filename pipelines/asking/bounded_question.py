"""Asks one query with limits on time and memory: what `millrace sql` and `millrace.open(lake).sql` share.

    bounded_question(lake, "from decisions", None, Bounds(seconds=300), lambda answer: print_rows(answer, "csv", console))

Memory: DuckDB's own limit, and on Linux a limit of the process, because DuckDB does not count a text of 3 GB that a function of
the query makes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import duckdb

from pipelines.asking.bounded import TookTooLong, bounded
from pipelines.asking.memory_bound import at_most
from resources.catalog.catalog import Answer, CatalogError, Parameters, ask
from resources.catalog.locked_catalog import Limits, memory_gib
from resources.lake import Lake

T = TypeVar("T")

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


def bounded_question(lake: Lake, sql: str, parameters: Parameters, bounds: Bounds, use: Callable[[Answer], T]) -> T:
    """The result of `use` on the query's answer. `use` reads the rows, in a thread of its own.

    Raises CatalogError; StuckQuestion and bounded.Interrupted if the query cannot be stopped.
    """
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
