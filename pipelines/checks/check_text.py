"""Prints the findings of `millrace check`: a mark, the subject, one sentence, and the remedy below it."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from pipelines.checks.check_recipe import CheckReport
from pipelines.checks.finding import Finding
from pipelines.checks.forecast import print_forecast
from pipelines.terminal.plain_console import folded

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "red")}
MOST_NAME = 24


def print_check(report: CheckReport, console: Console) -> None:
    """Prints what a run would take, every finding, and a closing count."""
    if report.forecast is not None:
        print_forecast(report.forecast, console)
        console.print()
    width = min(MOST_NAME, max(len(finding.check) for finding in report.findings))
    for finding in report.findings:
        _print(finding, width, console)
    problems, warnings = report.problems, report.count("warning")
    console.print()
    if problems:
        words, style = f"{_counted(problems, 'problem')}, {_counted(warnings, 'warning')}: a run would fail.", "bold red"
    else:
        words, style = f"No problem, {_counted(warnings, 'warning')}.", "bold green"
    console.print(Text(words, style=style))


def _print(finding: Finding, width: int, console: Console) -> None:
    mark, style = MARKS[finding.state]
    name = finding.check if len(finding.check) <= width else finding.check[: width - 1] + "…"
    lead = width + 4
    lines = folded(finding.message, console, lead)
    named = (name.ljust(width), "bold" if finding.state != "ok" else "")
    console.print(Text.assemble((mark, style), " ", named, "  ", lines[0]), soft_wrap=True)
    for line in lines[1:]:
        console.print(Text(" " * lead + line), soft_wrap=True)
    if finding.remedy:
        for place, line in enumerate(folded(finding.remedy, console, lead + 2)):
            console.print(Text.assemble(" " * lead, ("→ " if place == 0 else "  ", style), line), soft_wrap=True)


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"
