"""`millrace sql`: runs one query with limits on time and memory, and prints its rows.

    print_answer(lake, "from decisions", 300, None, lambda answer: print_rows(answer, "csv", console))

If a query does not stop when it is interrupted, because one of its functions keeps computing, the process is ended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from pipelines.asking.bounded import Interrupted, TookTooLong, bounded
from pipelines.asking.memory_bound import at_most
from pipelines.terminal.shared_options import say_error
from resources.catalog.catalog import Answer, CatalogError, ask
from resources.catalog.locked_catalog import Limits, memory_gib
from resources.lake import Lake

SPARE_GIB = 1.0
"""Memory, in GiB, that the process may use beyond DuckDB's limit: strings made by functions, rows being printed."""


def print_answer(
    lake: Lake, sql: str, seconds: float, memory: float | None, show: Callable[[Answer], None]
) -> None:
    """Runs the query and prints the rows. seconds: time limit, 0 for none; memory: in GiB, None for the default.

    Raises CatalogError, and KeyboardInterrupt on Ctrl-C.
    """
    connections: list[duckdb.DuckDBPyConnection] = []
    late = CatalogError(
        f"the query was stopped after {seconds:g} s: ask for less at a time, or allow more with --timeout SECONDS "
        "(0: no limit)"
    )

    def work(spill: Path) -> None:
        def opened(connection: duckdb.DuckDBPyConnection) -> None:
            connections.append(connection)
            stack.enter_context(at_most(memory_gib(connection) + SPARE_GIB))

        with ExitStack() as stack, ask(lake, sql, limits=Limits(memory, spill), opened=opened) as answer:
            show(answer)
            sys.stdout.flush()

    def stop() -> None:
        for connection in connections:
            with suppress(duckdb.Error):  # closed at this very moment
                connection.interrupt()

    try:
        with TemporaryDirectory(prefix="millrace-sql-") as spill:
            bounded(lambda: work(Path(spill)), stop, seconds)
    except TookTooLong as error:
        if error.stuck:
            say_error(late)
            _leave(2)
        raise late from None
    except Interrupted as error:
        if error.stuck:
            _leave(130)
        raise


def _leave(code: int) -> None:
    """Ends the process although one of its threads is still computing."""
    sys.stderr.flush()
    os._exit(code)
