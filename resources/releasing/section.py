"""A section of a release's report, as the terminal, Markdown and HTML show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """One table: title, column names, rows of ready text, and a sentence that says how to read it."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
