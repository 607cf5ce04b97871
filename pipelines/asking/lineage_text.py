"""`millrace lineage`: the tree of an artefact, and the log lines or users behind it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from model_ops.jobs import counted
from pipelines.asking.bounded import Bounds, QuestionInterrupted, StuckQuestion, bounded_question
from pipelines.terminal import (
    MOST_ROWS,
    OutputFormat,
    Rows,
    format_of,
    print_lineage,
    print_rows,
    say,
    say_error,
    write_arrow_stream,
    write_rows_file,
)
from resources.catalog import (
    CatalogError,
    LogLines,
    Page,
    Parameters,
    QueryResult,
    descendants_of,
    lineage_of,
    log_lines_of,
    why_empty,
)
from resources.lake import LakeLayout, sql_text


def result_printer(
    lake: LakeLayout,
    format: str | None,
    out: Path | None,
    limit: int | None,
    page: int,
    console: Console,
    width: int | None,
    statement: str = "",
    vertical: bool = False,
) -> Callable[[QueryResult], None]:
    """What shows an answer as the command's options say. format: None for a table, or what the file's ending says. statement:
    the query, to say why there are no rows. Raises CatalogError for options that contradict each other, and for a file in the
    lake, which holds only what runs make."""
    file_format = "" if out is None else format_of(out, format)
    if out is not None:
        if out.resolve().is_relative_to(lake.root.resolve()):
            raise CatalogError(f"--out {out} lies in the lake, which questions never change: give a file elsewhere")
    elif format == "parquet":
        raise CatalogError("--format parquet is written to a file: add --out FILE.parquet")
    if limit is None and page > 1:
        limit = MOST_ROWS

    def show(answer: QueryResult) -> None:
        rows: Rows = answer if limit is None else Page(answer, limit, page)
        if out is not None:
            written = counted(write_rows_file(rows, out, file_format), "row")
            console.print(f"wrote {written} to {out}", soft_wrap=True, highlight=False, markup=False)
        elif format == "arrow":
            write_arrow_stream(rows)
        elif print_rows(rows, format or "table", console, width, vertical) == 0 and format in (None, "table"):
            say(console, why_empty(statement))

    return show


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
    """Values of $name in a query, from `name=value`. Values are text; DuckDB reads them as what they are compared with. Raises
    CatalogError for another form, and for a name that is given twice."""
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


LISTS = {"log-lines": "catalog/queries/log_lines_of", "users": "catalog/queries/users_of"}
"""SQL that lists what is behind an artefact."""


def print_tree(
    lake: LakeLayout, artefact: str, format: OutputFormat, console: Console, width: int | None, downwards: bool
) -> None:
    """Prints what an artefact was made from, or downwards what was made from it. Raises CatalogError for an unknown one."""
    edges = descendants_of(lake, artefact) if downwards else lineage_of(lake, artefact)
    print_lineage(edges, format.value, console, width, downwards)
    if format is not OutputFormat.table:
        return
    if downwards:
        if not edges.num_rows:
            _say(f"Nothing was made from {artefact} yet.", console)
        return
    lines = log_lines_of(lake, artefact)
    _say(f"Behind it: {_counts(lines)}. They are listed by --to log-lines and --to users.", console)


def print_origin(
    lake: LakeLayout, artefact: str, origin: str, show: Callable[[QueryResult], None], console: Console, quiet: bool
) -> None:
    """Lists the log lines or hashed users behind an artefact. quiet: without the counts. Raises CatalogError."""
    lines = log_lines_of(lake, artefact)
    print_answer(lake, sql_text(LISTS[origin]), {"artefact": lines.artefact}, Bounds(), show)
    if not quiet:
        _say(f"Behind {lines.artefact}: {_counts(lines)}.", console)


def _counts(lines: LogLines) -> str:
    return (
        f"{counted(lines.interactions, 'interaction')} from {counted(lines.objects, 'log object')} and "
        f"{counted(lines.users, 'hashed user')}"
    )


def _say(text: str, console: Console) -> None:
    console.print(Text(text), soft_wrap=True, highlight=False)
