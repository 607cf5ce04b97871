"""Packs document lengths into few rows of bounded length (bin packing). Best-fit decreasing (arXiv 2404.10830) first. If that
needs more rows than a lower bound (Martello and Toth's L2, 1990), rows are filled by minimum bin slack (Gupta and Ho 1999),
where each may waste an equal share of the total slack (Fleszar and Hindi 2002), at most ATTEMPTS times. The search is limited
by counted work: the same lengths give the same rows on any machine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

ATTEMPTS = 4
"""Most attempts to fill the rows again."""

WORK = 15_000_000
"""Lengths tried in one attempt, in addition to each row's allowance: about a fifth of a second."""


@dataclass(frozen=True)
class PackedRows(Sequence):
    """Documents by row: row r holds documents[starts[r]:starts[r + 1]]."""

    documents: Int[np.ndarray, " documents"]
    starts: Int[np.ndarray, " rows_and_end"]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> Int[np.ndarray, " documents_of_row"]:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.documents[self.starts[row] : self.starts[row + 1]]

    def __iter__(self) -> Iterator[Int[np.ndarray, " documents_of_row"]]:
        return (self[row] for row in range(len(self)))

    def sums(self, values: Int[np.ndarray, " documents"]) -> Int[np.ndarray, " rows"]:
        """The sum over each row of a value per document, such as its tokens."""
        sums = np.concatenate([[0], np.cumsum(values[self.documents])])
        return sums[self.starts[1:]] - sums[self.starts[:-1]]


def pack(lengths: Sequence[int] | Int[np.ndarray, " documents"], capacity: int) -> PackedRows:
    """Rows of document indices of at most `capacity` tokens, each document once. Raises ValueError for a longer document."""
    from model_ops.documents.packing_kernels import best_fit, fill_rows  # loads numba

    lengths = np.asarray(lengths, dtype=np.int64)
    too_long = np.flatnonzero(lengths > capacity)
    if len(too_long):
        raise ValueError(f"document {too_long[0]} has {lengths[too_long[0]]} tokens, a row holds {capacity}")
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    room = int(min(capacity, ordered.sum()))  # no row can hold more, which bounds the tables
    row_of, rows = best_fit(ordered, room)
    positive = ordered[ordered > 0]
    fewest = max(min(1, rows), fewest_rows(positive, capacity))
    aimed = fewest
    for attempt in range(ATTEMPTS):
        if rows <= fewest:
            break
        filled, filled_rows = fill_rows(positive, room, aimed, attempt != 1, WORK)
        if filled_rows < rows:
            rows = filled_rows
            row_of = np.concatenate([filled, np.zeros(len(ordered) - len(positive), dtype=np.int64)])
        aimed = fewest if attempt == 0 else min(rows - 1, fewest + (rows - fewest) * attempt // (ATTEMPTS - 1))
    by_row = np.argsort(row_of, kind="stable")
    return PackedRows(order[by_row], np.searchsorted(row_of[by_row], np.arange(rows + 1)))


def fewest_rows(lengths: Int[np.ndarray, " documents"], capacity: int) -> int:
    """Lower bound of the number of rows: Martello and Toth's L2 (Knapsack Problems, 1990, section 8.3), the largest over K:
    documents above capacity - K and those above half a row need a row each; those from K to half a row fill the space left, and
    further rows."""
    if not len(lengths):
        return 0
    lengths = np.sort(lengths)
    before = np.concatenate([[0], np.cumsum(lengths)])
    half = np.searchsorted(lengths, capacity // 2, side="right")
    shortest = np.concatenate([[0], np.unique(lengths[:half])])
    alone_from = np.maximum(half, np.searchsorted(lengths, capacity - shortest, side="right"))
    short_from = np.searchsorted(lengths, shortest, side="left")
    large = alone_from - half
    room = large * capacity - (before[alone_from] - before[half])
    short = before[half] - before[short_from]
    return int((len(lengths) - half + np.maximum(0, -(-(short - room) // capacity))).max())
