"""Shared by all commands: the typer app, common options, and the consoles, which spell out control characters in what they
print. Text from logs is printed as rich Text, or with markup=False, so that square brackets stay too."""

import textwrap
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from resources.records import visible


class PlainConsole(Console):
    """A rich console that spells out control characters in everything but its own styles and cursor movements."""

    def __init__(self, **settings: Any):
        super().__init__(emoji=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The renderable's segments; ends of lines stay."""
        return self._plain(super().render(renderable, options))

    def render_str(self, text: str, **settings: Any) -> Text:
        """Text with our markup, escaped before rich drops control characters."""
        return super().render_str(visible(text, lines=True), **settings)

    @staticmethod
    def _plain(segments: Iterable[Segment]) -> Iterator[Segment]:
        for segment in segments:
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(visible(segment.text, lines=True), segment.style)


def say(console: Console, words: str, style: str | None = None) -> None:
    """Prints a sentence as it is, without markup: folded on a terminal, one line elsewhere."""
    console.print(words, style=style, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def wrap_words(words: str, console: Console, lead: int) -> list[str]:
    """The lines of a sentence that stands `lead` characters from the left. One line where the output is no terminal, so that
    programs can read it by line."""
    if not console.is_terminal:
        return [words]
    return textwrap.wrap(words, max(30, console.width - lead - 1), break_long_words=False, break_on_hyphens=False) or [""]


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


RowFormat = StrEnum("RowFormat", ["table", "json", "csv", "parquet", "arrow"])
OutputFormat = StrEnum("OutputFormat", ["table", "json", "csv"])
ReportFormat = StrEnum("ReportFormat", ["table", "json"])


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
