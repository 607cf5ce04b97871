"""An inspection as a page of text in the terminal: what `millrace inspect` prints."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resources.inspecting.inspection import Inspection
from resources.inspecting.inspection_page import day_bars, headline, sections

MARKS = {"yes": "green", "possible": "yellow"}


def print_inspection(found: Inspection, console: Console) -> None:
    """Prints the figures, the tables, and the verdicts last, where one looks first."""
    figures = Table.grid(padding=(0, 2, 0, 0))
    figures.add_column(justify="right", style="bold")
    figures.add_column(style="dim", overflow="fold")
    for number, what in headline(found):
        figures.add_row(number, what)
    console.print(figures)
    if days := day_bars(found):
        console.print(Text(f"\n{days['first']} to {days['last']}   {_bars([bar['height'] for bar in days['bars']])}"))
    for section in sections(found):
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
        for place, column in enumerate(section.columns):
            table.add_column(column, justify="right" if place in section.right else "left", overflow="fold")
        for row in section.rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print()
        console.print(Text(section.title, style="bold"))
        console.print(table)
        if section.note:
            console.print(Text(section.note, style="dim"))
    for verdict in found.verdicts:
        console.print()
        heading = Text(f"Is it worth {verdict.question}? ", style="bold")
        console.print(heading.append(verdict.answer, style=MARKS.get(verdict.answer, "red")))
        console.print(Text(f"  {verdict.sentence}"))
        for check in verdict.checks:
            mark = Text("  ✓ ", style="green") if check.passed else Text("  ✗ ", style="red")
            console.print(mark.append(f"{check.name}: {check.found}", style="default").append(
                f" (wanted: {check.wanted}; {check.why})", style="dim"))


def _bars(heights: list[float]) -> str:
    """Heights as a line of blocks, at most 60 of them; days without traffic are blanks."""
    step = -(-len(heights) // 60)
    sums = [sum(heights[place : place + step]) for place in range(0, len(heights), step)]
    return "".join("▁▂▃▄▅▆▇█"[min(int(each / max(sums) * 7.999), 7)] if each else " " for each in sums)
