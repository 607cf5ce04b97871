"""A section of a release's report, as the terminal, Markdown and HTML show it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

_FIGURE = re.compile(r"-?[\d.,]+(?:e[+-]?\d+)?(?: ?%| [A-Za-z/]{1,12})?(?: (?:to -?[\d.,]+(?:e[+-]?\d+)?|\([-\d., to]+\)))?")
_NONE = frozenset({"", "-", "not measured"})


@dataclass(frozen=True)
class ReportSection:
    """One table: title, column names, rows of ready text, and a sentence that says how to read it. shows_rows: whether it shows
    texts or ids of rows, so that it is no part of a model card. charts: HTML shows them between title and table."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    shows_rows: bool = False
    charts: Sequence[Markup] = ()

    @property
    def is_figure(self) -> list[bool]:
        """Which columns hold figures only, and are aligned at the right."""
        return [
            any(row[place] not in _NONE for row in self.rows)
            and all(row[place] in _NONE or _FIGURE.fullmatch(row[place]) for row in self.rows)
            for place in range(len(self.columns))
        ]
