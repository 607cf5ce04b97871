"""Shared by all commands: the typer app, the two consoles, common options."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipelines.terminal.plain_console import PlainConsole

app = typer.Typer(
    name="millrace",
    help="From a product's own LLM logs to endpoint-ready weights, in one declared Dagster graph.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = PlainConsole()
errors = PlainConsole(stderr=True)

LakeOption = Annotated[
    str | None, typer.Option("--lake", envvar="MILLRACE_LAKE", help="the lake's directory", show_default="./lake")
]
RecipeArgument = Annotated[Path, typer.Argument(help="the recipe's YAML file")]
HostOption = Annotated[str, typer.Option("--host", help="address to listen on")]
KeysOption = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        help="of captured traffic: YAML file of sampling rates and zero retention by the sha256 of an API key",
        show_default="everything is kept",
    ),
]
WidthOption = Annotated[
    int | None,
    typer.Option(
        "--width", min=20, help="width of tables in characters", show_default="the terminal's; in a file, the content's"
    ),
]

VerticalOption = Annotated[bool, typer.Option("--vertical", help="one field a line; chosen by itself where a row does not fit")]

LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, help="rows of a page", show_default="200 in a table, else all")
]
PageOption = Annotated[int, typer.Option("--page", min=1, help="which page of --limit rows; the query should order its rows")]


class RowFormat(StrEnum):
    """How the rows of a query are printed or written."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"
    arrow = "arrow"


class OutputFormat(StrEnum):
    """How rows are printed."""

    table = "table"
    json = "json"
    csv = "csv"


class ReportFormat(StrEnum):
    """How a report is printed: for people or for programs."""

    table = "table"
    json = "json"


def open_lake(given: str | None):
    """The lake of --lake or MILLRACE_LAKE, else ./lake. Raises LakeError if there is none."""
    from resources.lake import LakeLayout

    return LakeLayout.open(given or "lake", create=False)


def say_error(message: object) -> None:
    """Prints a sentence on standard error, without markup."""
    errors.print(f"millrace: {message}", style="red", markup=False, highlight=False, soft_wrap=True)


def print_line(sentence: str, style: str | None = None) -> None:
    """Prints a sentence on standard output, without markup, on one line."""
    console.print(sentence, style=style, markup=False, highlight=False, soft_wrap=True)
