"""Tables of logged text, as wide as the terminal, in a file as wide as their content, or `width`. Ids, URIs and column names
are never folded: where a row does not fit, each row is printed with one field a line."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from resources.records import visible

MOST_CHARACTERS = 120
NARROWEST = 40
"""Longest word, in characters, that is never broken."""

_UNBOUNDED = 1_000_000
_ID = re.compile(r"[\w.:@#/~%+=\[\]'-]{1,130}[,;)]?", re.ASCII)
_PLACE = re.compile(r"(?:[A-Za-z][\w+.-]*://|/|~/|\./|\.\./)(?:(?!  ).){0,300}")  # two spaces: a sentence goes on after it
_ID_COLUMN = re.compile(r"(?:.*_)?(?:id|uri|path|sha256|digest|hash|version|node)")


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[str | Text]], right: frozenset[int] = frozenset(), **look: Any
) -> Table:
    """A table whose cells are plain text. right: indices of right-aligned columns."""
    table = Table(**look)
    for place, column in enumerate(columns):
        table.add_column(Text(visible(column)), justify="right" if place in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(visible(cell)) for cell in row))
    return table


def shorten(text: str, column: str = "") -> str:
    """A value for a cell: at most MOST_CHARACTERS, but ids and paths are never cut."""
    if len(text) <= MOST_CHARACTERS or _PLACE.fullmatch(text) or _ID_COLUMN.fullmatch(column):
        return text
    end = MOST_CHARACTERS - 1
    for word in re.finditer(r"\S+", text):
        if word.start() < end < word.end() and _is_whole(word[0]):
            end = word.start() or word.end()
    return text if end >= len(text) else text[:end].rstrip() + "…"


def print_table(table: Table, console: Console, width: int | None = None, vertical: bool = False) -> None:
    """Prints a table as wide as there is room, or as its ids and paths need. vertical: one field a line even if rows fit."""
    with room_for(table, console, width) as room:
        natural = [_natural(column) for column in table.columns]
        least = [_least(column) for column in table.columns]
        around = Measurement.get(console, console.options, table).maximum - sum(natural)
        if table.row_count and table.show_header and (vertical or around + sum(least) > room):
            _print_fields(table, console, room)
            return
        widths = fitted(natural, least, room - around)
        for column, given in zip(table.columns, widths, strict=True):
            column.width = given
        console.width = max(room, around + sum(widths))
        console.print(table, markup=False, highlight=False)


def _print_fields(table: Table, console: Console, room: int) -> None:
    names = [str(column.header) for column in table.columns]
    lead = max(map(cell_len, names)) + 2
    for number in range(table.row_count):
        console.print(Text(f"row {number + 1}", style="bold"))
        for name, column in zip(names, table.columns, strict=True):
            cell = column._cells[number]
            text = cell.plain if isinstance(cell, Text) else str(cell)
            for place, line in enumerate(_folded(text, room - lead)):
                console.print(Text.assemble((f"{'' if place else name:<{lead}}", "dim"), line), highlight=False)


def _folded(text: str, room: int) -> list[str]:
    """The lines of a text, broken between words only; none of an empty one."""
    fold = partial(textwrap.wrap, width=max(NARROWEST, room), break_long_words=False, break_on_hyphens=False)
    return [line for part in text.split("\n") for line in ([part] if cell_len(part) <= room else fold(part)) if line]


@contextmanager
def room_for(shown: RenderableType, console: Console, width: int | None) -> Iterator[int]:
    """Yields the available width; meanwhile the console itself is unbounded."""
    room = width or (console.width if console.is_terminal else _UNBOUNDED)
    before, console._width = console._width, _UNBOUNDED
    try:
        yield min(room, Measurement.get(console, console.options, shown).maximum)
    finally:
        console._width = before


def fitted(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Column widths that fit into `room`: the widest columns shrink first, none below its least width."""
    widths = list(natural)
    while sum(widths) > room:
        can_give = [place for place, width in enumerate(widths) if width > least[place]]
        if not can_give:
            break
        widths[max(can_give, key=lambda place: widths[place])] -= 1
    return widths


def _cells(column: Any) -> list[str]:
    return [str(column.header), *(str(cell) for cell in column._cells)]


def _natural(column: Any) -> int:
    return max(cell_len(line) for cell in _cells(column) for line in cell.split("\n"))


def _least(column: Any) -> int:
    if column.no_wrap:
        return _natural(column)
    return max((cell_len(part) for cell in _cells(column) for part in _unbreakable(cell)), default=1) or 1


def _unbreakable(cell: str) -> list[str]:
    if _PLACE.fullmatch(cell):
        return [cell]
    return [word if _is_whole(word) else word[:NARROWEST] for word in cell.split()]


def _is_whole(word: str) -> bool:
    """Whether a word is an id or a path, or too short to be broken."""
    return len(word) <= NARROWEST or "://" in word or _ID.fullmatch(word) is not None
