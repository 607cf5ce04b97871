"""One page of an answer: rows are read as far as the page goes, and no further.

    page = Page(answer, limit=50, number=2)       # rows 51 to 100
    ...                                           # after its batches were read:
    page.more                                     # whether there are rows after them

Pages fit together only if the query orders its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from resources.catalog.catalog import QueryResult


@dataclass
class Page:
    """A page, readable as an answer is."""

    answer: QueryResult
    limit: int
    number: int = 1
    """From 1."""
    more: bool = False

    @property
    def first(self) -> int:
        """Number of its first row in the whole answer, from 1."""
        return (self.number - 1) * self.limit + 1

    @property
    def schema(self) -> pa.Schema:
        return self.answer.schema

    @property
    def batches(self) -> Iterator[pa.RecordBatch]:
        skip, wanted = self.first - 1, self.limit
        for batch in self.answer.batches:
            part = batch.slice(min(skip, batch.num_rows))
            skip -= batch.num_rows - part.num_rows
            self.more = part.num_rows > wanted
            part = part.slice(0, wanted)
            wanted -= part.num_rows
            if part.num_rows:
                yield part
            if self.more:
                return
