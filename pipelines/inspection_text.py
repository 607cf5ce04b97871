"""An inspection as a page of text in the terminal: what `millrace inspect` prints."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resources.inspection import Inspection
from resources.inspection_page import headline, sections

MARKS = {"yes": "green", "possible": "yellow"}


def print_inspection(found: Inspection, console: Console) -> None:
    """Prints the figures, the tables, and the verdicts last, where one looks first."""
    line = Text()
    for number, what in headline(found):
        line.append(number, style="bold").append(f" {what}   ", style="dim")
    console.print(line)
    if found.days:
        console.print(Text(f"{found.days[0]['day']} to {found.days[-1]['day']}   {_bars([day['rows'] for day in found.days])}"))
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


def _bars(counts: list[int]) -> str:
    """Counts as a line of blocks, at most 60 of them."""
    step = -(-len(counts) // 60)
    sums = [sum(counts[place : place + step]) for place in range(0, len(counts), step)]
    return "".join("▁▂▃▄▅▆▇█"[min(int(count / max(sums) * 7.999), 7)] for count in sums)
