"""Documents into rows, rows into steps: what a training run sees, and when.

    plan = PackedPlan(documents, settings)         # a BatchPlan (model_ops.training.batch)
    rows = pack([120, 64, 200, 900], capacity=1024)

Best-fit decreasing (arXiv 2404.10830): longest first, each into the fullest row it still fits. Rows are then shuffled
anew in every pass over them, by a generator of (seed, pass), so step i is a function of i and the settings alone.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Shaped

from model_ops.training.batch import IGNORED, Batch
from model_ops.training.settings import TrainingSettings

MICRO_BATCH_TOKENS = 4_096
"""Rows of a step are laid together up to this many tokens: large products are faster, documents stay apart anyway."""


@dataclass(frozen=True)
class Document:
    """One document: its tokens, which of them are to be predicted, and any further streams of one value per token.

    `extras` streams are aligned with `input_ids` and reach the loss as `batch.extras`.
    """

    row_id: str
    input_ids: Shaped[np.ndarray, " tokens"]
    targets: Bool[np.ndarray, " tokens"]
    extras: dict[str, Shaped[np.ndarray, " tokens ..."]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def target_tokens(self) -> int:
        """Tokens that are predicted: the first token of a document never is, nothing precedes it."""
        return int(self.targets[1:].sum())


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Rows of document indices, no row longer than `capacity` tokens, every document in exactly one of them.

    Raises ValueError for a document that is longer than a row: cutting is for the one who can count it.
    """
    rows: list[list[int]] = []
    spaces: list[int] = []  # distinct free spaces, ascending
    holders: dict[int, deque[int]] = {}  # free space -> rows that have it, oldest first
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        if length > capacity:
            raise ValueError(f"document {index} has {length} tokens, a row holds {capacity}")
        place = bisect.bisect_left(spaces, length)
        if place < len(spaces):
            space = spaces[place]
            row = holders[space].popleft()
            if not holders[space]:
                del holders[space], spaces[place]
        else:
            space, row = capacity, len(rows)
            rows.append([])
        rows[row].append(index)
        left = space - length
        if left not in holders:
            holders[left] = deque()
            bisect.insort(spaces, left)
        holders[left].append(row)
    return rows


def to_batch(documents: Sequence[Document]) -> Batch:
    """Documents end to end, labels shifted so that labels[t] is what position t predicts."""
    lengths = [len(document) for document in documents]
    input_ids = np.concatenate([document.input_ids for document in documents]).astype(np.int64)
    labels = np.full(len(input_ids), IGNORED, dtype=np.int64)
    start = 0
    for document, length in zip(documents, lengths, strict=True):
        labels[start:start + length - 1] = np.where(document.targets[1:], document.input_ids[1:], IGNORED)
        start += length
    return Batch(
        input_ids=torch.from_numpy(input_ids),
        position_ids=torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])),
        labels=torch.from_numpy(labels),
        weights=torch.ones(len(input_ids)),
        document_lengths=lengths,
        row_ids=[document.row_id for document in documents],
        extras={name: torch.from_numpy(np.concatenate([document.extras[name] for document in documents]))
                for name in (documents[0].extras if documents else {})},
    )


def to_batches(documents: Sequence[Document], batch_tokens: int = MICRO_BATCH_TOKENS) -> list[Batch]:
    """Every document once, similar lengths together, no batch above `batch_tokens` unless one document is."""
    order = sorted(range(len(documents)), key=lambda i: (len(documents[i]), i))
    return [to_batch([documents[i] for i in part])
            for part in _by_tokens(order, [len(document) for document in documents], batch_tokens)]


class PackedPlan:
    """A BatchPlan over packed documents: `steps` of them, or `epochs` passes; tokens_per_step is met on average."""

    def __init__(self, documents: Sequence[Document], settings: TrainingSettings):
        self.documents = documents
        self.seed = settings.seed
        lengths = [len(document) for document in documents]
        longest = max(lengths, default=1)
        capacity = min(settings.max_length, max(settings.tokens_per_step, longest))
        self.rows = pack(lengths, capacity)
        self.row_tokens = [sum(lengths[i] for i in row) for row in self.rows]
        self.micro_batch_tokens = max(capacity, MICRO_BATCH_TOKENS)
        self.rows_per_step = max(1, round(settings.tokens_per_step / capacity))
        passes = math.ceil((settings.epochs or 0) * len(self.rows) / self.rows_per_step)
        self.steps = 0 if not self.rows else settings.steps if settings.steps is not None else max(1, passes)

    def __len__(self) -> int:
        return self.steps

    def step(self, index: int, rank: int = 0, ranks: int = 1) -> list[Batch]:
        """This rank's rows of step `index`, laid together into micro-batches; see BatchPlan."""
        if not 0 <= index < self.steps:
            raise IndexError(index)
        first = index * self.rows_per_step
        rows = [self._row_at(position) for position in range(first, first + self.rows_per_step)]
        cut = [_by_tokens(mine, self.row_tokens, self.micro_batch_tokens) for mine in share(rows, self.row_tokens, ranks)]
        batches = [self._batch(part) for part in cut[rank]]
        missing = max(len(parts) for parts in cut) - len(batches)
        return batches + [self._batch(rows[:1]).silenced()] * missing

    def _batch(self, rows: Sequence[int]) -> Batch:
        return to_batch([self.documents[i] for row in rows for i in self.rows[row]])

    def _row_at(self, position: int) -> int:
        return int(_order(len(self.rows), self.seed, position // len(self.rows))[position % len(self.rows)])


def share(items: Sequence[int], tokens: Sequence[int], ranks: int) -> list[list[int]]:
    """Items over ranks so that each holds about as many tokens: longest first, each to the rank that has least."""
    if ranks == 1:
        return [list(items)]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    held = [0] * ranks
    for item in sorted(items, key=lambda item: -tokens[item]):
        least = min(range(ranks), key=held.__getitem__)
        shares[least].append(item)
        held[least] += tokens[item]
    return shares


@lru_cache(maxsize=4)
def _order(rows: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(rows)


def _by_tokens(indices: Sequence[int], tokens: Sequence[int], limit: int) -> list[list[int]]:
    """Consecutive runs of indices whose tokens stay within the limit; a single one may be above it."""
    parts: list[list[int]] = []
    held = 0
    for index in indices:
        if not parts or held + tokens[index] > limit:
            parts.append([])
            held = 0
        parts[-1].append(index)
        held += tokens[index]
    return parts
