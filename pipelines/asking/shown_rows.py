"""Where the rows of a question go: the terminal, standard output, or a file; all of them, or one page."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from model_ops.jobs import counted
from pipelines.terminal import MOST_ROWS, Rows, format_of, print_rows, say, write_arrow_stream, write_rows_file
from resources.catalog import CatalogError, Page, QueryResult, why_empty
from resources.lake import LakeLayout


def showing(
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
    the query, to say why there are no rows.

    Raises CatalogError for options that contradict each other, and for a file in the lake, which holds only what runs make.
    """
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
