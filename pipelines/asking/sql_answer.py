"""`millrace sql`: runs one query with limits on time and memory, and prints its rows or writes them to a file.

If a query does not stop when it is interrupted, because one of its functions keeps computing, the process is ended.
"""

import os
import sys
from collections.abc import Callable

from pipelines.asking.bounded import Bounds, QuestionInterrupted, StuckQuestion, bounded_question
from pipelines.terminal import say_error
from resources.catalog import CatalogError, Parameters, QueryResult
from resources.lake import LakeLayout


def print_answer(
    lake: LakeLayout, sql: str, parameters: Parameters, bounds: Bounds, show: Callable[[QueryResult], None]
) -> None:
    """Runs the query and shows its answer. Raises CatalogError, and KeyboardInterrupt on Ctrl-C."""

    def use(answer: QueryResult) -> None:
        show(answer)
        sys.stdout.flush()

    try:
        bounded_question(lake, sql, parameters, bounds, use)
    except StuckQuestion as error:
        say_error(error)
        _leave(2)
    except QuestionInterrupted as error:
        if error.stuck:
            _leave(130)
        raise


def named_parameters(given: list[str]) -> dict[str, str] | None:
    """Values of $name in a query, from `name=value`. Values are text; DuckDB reads them as what they are compared with.

    Raises CatalogError for another form, and for a name that is given twice.
    """
    values: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name.isidentifier():
            raise CatalogError(f"--param {item}: give NAME=VALUE, such as --param day=2026-06-01 for $day in the query")
        if name in values:
            raise CatalogError(f"--param {name} is given twice: give one value for each name")
        values[name] = value
    return values or None


def _leave(code: int) -> None:
    """Ends the process although one of its threads is still computing."""
    sys.stderr.flush()
    os._exit(code)
