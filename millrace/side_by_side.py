"""Answers of two releases to the same prompts, with their differences: what `Lake.side_by_side` returns.

found = lake.side_by_side("3f2a91", "77b0c2", prompts=50)
found                        # in a notebook: each answer beside the other, differences marked
found.frame                  # the same rows as a polars.DataFrame
found.html("answers.html")   # as a page without network
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.errors import public

if TYPE_CHECKING:
    import polars as pl


class SideBySide:
    """Pairs of answers. Texts are those of the log and of models: treat them as data."""

    def __init__(self, pairs: list[Any], before: str, after: str):
        self._pairs = pairs
        self.before, self.after = before, after
        """Versions of the two releases."""

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        return f"<{len(self)} prompts answered by {self.before} and {self.after}>"

    @property
    def frame(self) -> pl.DataFrame:
        """One row per prompt: row_id, turn (-1: the row's last answer), how, prompt, logged, before, after, same."""
        import polars as pl

        columns = ("row_id", "turn", "how", "prompt", "logged", "before", "after", "same")
        return pl.DataFrame([{name: getattr(pair, name) for name in columns} for pair in self._pairs])

    def _repr_html_(self) -> str:
        from resources.reporting import pairs_as_html

        return pairs_as_html(self._pairs, self.before, self.after)

    @public
    def html(self, path: str | Path) -> Path:
        """Writes the page and returns its path. It shows texts of users.

        >>> found.html("answers.html")
        """
        from model_ops.files import write_text

        head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        page = (
            f'<!doctype html>\n<html lang="en">\n<head>{head}<title>{self.before} and {self.after}</title></head>\n'
            f"<body>\n{self._repr_html_()}\n</body>\n</html>\n"
        )
        write_text(Path(path).expanduser().absolute(), page)
        return Path(path)
