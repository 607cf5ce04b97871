"""Prints the report of `millrace inspect`."""

import shlex

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.terminal.shared_options import wrap_words
from pipelines.terminal.tables import print_table, text_table
from resources.inspecting import Inspection, day_bars, headline, proposal_text, sections
from resources.records import visible

MARKS = {"yes": "green", "possible": "yellow"}


def print_inspection(inspection: Inspection, console: Console, width: int | None = None) -> None:
    """Prints figures, tables and then the verdicts, which end up just above the prompt."""
    figures = Table.grid(padding=(0, 2, 0, 0))
    figures.add_column(justify="right", style="bold")
    figures.add_column(style="dim", overflow="fold")
    for number, what in headline(inspection):
        figures.add_row(number, what)
    console.print(figures)
    if days := day_bars(inspection):
        console.print(Text(f"\n{days['first']} to {days['last']}   {_bars([bar['height'] for bar in days['bars']])}"))
    for section in sections(inspection):
        table = text_table(
            section.columns, section.rows, section.right, box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False
        )
        console.print()
        console.print(Text(section.title, style="bold"))
        print_table(table, console, width)
        if section.note:
            _say(visible(section.note), console, style="dim")
    if inspection.proposed:
        console.print(
            Text(visible(proposal_text(inspection.proposed), lines=True)), overflow="ignore", crop=False, soft_wrap=True
        )
    for verdict in inspection.verdicts:
        console.print()
        heading = Text(f"Is it worth {verdict.question}? ", style="bold")
        console.print(heading.append(verdict.answer, style=MARKS.get(verdict.answer, "red")))
        _say(visible(verdict.sentence), console, "  ")
        for check in verdict.checks:
            mark = Text("  ✓ ", style="green") if check.passed else Text("  ✗ ", style="red")
            _say(f"{check.name}: {check.value} (wanted: {check.wanted}; {check.why})", console, mark)
    console.print()
    uris = visible(shlex.join(inspection.uris))
    _say(f"next: millrace init {uris} --base-model MODEL writes a recipe for these logs", console)


def _say(words: str, console: Console, mark: str | Text = "", style: str = "") -> None:
    """Prints a sentence behind a mark, folded between words on a terminal: a URI in it stays in one piece."""
    for number, line in enumerate(wrap_words(words, console, len(mark))):
        lead = " " * len(mark) if number else mark
        console.print(Text.assemble(lead, (line, style)), overflow="ignore", crop=False, soft_wrap=True)


def _bars(heights: list[float]) -> str:
    """Heights as a line of blocks, at most 60 of them; days without traffic are blanks."""
    step = -(-len(heights) // 60)
    sums = [sum(heights[place : place + step]) for place in range(0, len(heights), step)]
    return "".join("▁▂▃▄▅▆▇█"[min(int(each / max(sums) * 7.999), 7)] if each else " " for each in sums)
