"""Prints the report of `millrace sweep`."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pipelines.planning.sweep import Report


def print_sweep(report: Report, console: Console) -> None:
    """Prints one row per rate, a sentence on the best rate, and the line to paste."""
    best, tied = report.best, report.tied
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("learning rate", "held-out loss", "± last points", "training loss", ""):
        table.add_column(name, justify="left" if not name else "right")
    for one in report.tried:
        if one.loss is None:
            table.add_row(f"{one.learning_rate:g}", "-", "", "", Text(one.broke, style="red"))
            continue
        mark = "[bold green]best" if one is best else "[yellow]no different" if one in tied else ""
        table.add_row(f"{one.learning_rate:g}", f"{one.loss:.4f}", f"{one.wobble:.4f}", f"{one.training_loss:.4f}", mark)
    console.print(f"[bold]{report.stage}[/], {report.steps} steps each", highlight=False)
    console.print(table, highlight=False)
    if best is None:
        console.print("every rate diverged: try lower ones", style="red")
        return
    if tied:
        console.print(f"{', '.join(f'{one.learning_rate:g}' for one in tied)} cannot be told from the best: the difference is "
                      "within what validation moved over its last two points.", highlight=False, soft_wrap=True)
    if report.at_the_edge:
        console.print("The best rate is the lowest or highest tried; a better one may be outside.", soft_wrap=True)
    console.print(f"[dim]One seed and a short schedule. Report: {escape(str(report.folder))}. To paste:[/]",
                  highlight=False, soft_wrap=True)
    console.print(f"{report.stage}:\n  learning_rate: {_yaml_number(best.learning_rate)}", highlight=False)


def _yaml_number(rate: float) -> str:
    """A rate with a decimal point, because YAML 1.1 reads 2e-05 as text."""
    digits, _, exponent = f"{rate:.3e}".partition("e")
    digits = digits.rstrip("0")
    return f"{digits}{'0' if digits.endswith('.') else ''}e{int(exponent):+03d}"
