"""Packs documents into rows and assigns rows to optimizer steps.

    plan = PackedPlan(documents, settings)         # a BatchSource (model_ops.tensors.batch)
    plan.step(0)                                   # the micro-batches of the first step
    to_batches(documents)                          # every document once, for an evaluation

Attention stays within a document, so rows only decide which documents share a step. In every pass rows are shuffled, and
documents of the same length swap places, by a generator of (seed, pass): step i is a function of i and the settings."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Generic, Protocol, overload

import numpy as np
from jaxtyping import Int

from model_ops.documents.bin_packing import pack
from model_ops.documents.documents import Document, lengths_and_targets, prefix_tokens, to_batch
from model_ops.jobs import filled
from model_ops.tensors import AnyBatch, Batch
from model_ops.training import TrainingSettings

MICRO_BATCH_TOKENS = 4_096
"""Default of settings.micro_batch_tokens: rows of a step are concatenated, because large products are faster."""


@overload
def to_batches(documents: Sequence[Document], batch_tokens: int = ...) -> list[Batch]: ...
@overload
def to_batches(documents: Sequence[Document], batch_tokens: int = ..., *, kind: type[AnyBatch]) -> list[AnyBatch]: ...
def to_batches(documents, batch_tokens=MICRO_BATCH_TOKENS, kind=Batch):
    """Every document once, batched by similar length. A batch has at most `batch_tokens` tokens, or one longer document."""
    lengths = lengths_and_targets(documents)[0].tolist()
    order = sorted(range(len(documents)), key=lambda i: (lengths[i], i))
    return [to_batch([documents[i] for i in part], kind) for part in _by_tokens(order, lengths, batch_tokens)]


WEIGHED_ROWS = 100_000
"""The heaviest micro-batch is searched among the steps of this many first rows; other passes hold the same rows."""
TARGET_WEIGHT = 1 / 8
"""Memory of a target relative to a token: a target adds its last hidden state, the gradient of it, and a share of a chunk of
logits; a token has a dozen or more such vectors in every layer for the backward pass."""

PREFIX_WEIGHT = 0.3
"""Memory of a token before a branch relative to a token: attention keeps its keys and values once more for each branch.
Measured on a tiny model (1.6 kB of 5.3 kB a token); less where keys have few heads."""


class Streams(Protocol):
    """Further streams of documents, made when a batch needs them."""

    @property
    def kind(self) -> type[Batch]:
        """Class of the batches, which declares the streams."""

    def added_to(self, document: Document, index: int) -> Document:
        """The document with its streams; index: its place among the documents of the plan."""


class PackedRows(ABC, Generic[AnyBatch]):
    """A BatchSource over packed documents: `steps` steps or `epochs` passes, with tokens_per_step tokens on average. settings:
    resolved; its own `settings` have the step and the passes that small data gets. No step reads a row twice."""

    def __init__(self, documents: Sequence[Document], settings: TrainingSettings):
        self.documents = documents
        self.seed = settings.seed
        self.lengths, self.targets = lengths_and_targets(documents)
        self.prefixes = prefix_tokens(documents)
        longest = int(self.lengths.max(initial=1))
        self.settings = settings = settings.fitted(int(self.lengths.sum()), longest)
        tokens_per_step = filled(settings.tokens_per_step)
        capacity = min(filled(settings.max_length), max(tokens_per_step, longest))
        if settings.micro_batch_tokens is not None:
            capacity = min(capacity, max(settings.micro_batch_tokens, longest))
        self.rows = pack(self.lengths, capacity)
        self.row_tokens = self.rows.sums(self.lengths).tolist()
        self.micro_batch_tokens = max(capacity, settings.micro_batch_tokens or MICRO_BATCH_TOKENS)
        a_row = sum(self.row_tokens) / max(1, len(self.rows))  # rows of short documents are not full
        self.rows_per_step = max(1, min(len(self.rows), round(tokens_per_step / max(1.0, a_row))))
        self.steps = settings.steps_over(len(self.rows), self.rows_per_step) if len(self.rows) else 0
        self._by_length = np.argsort(self.lengths, kind="stable")
        self._in_pass = lru_cache(maxsize=2)(self._exchanged)

    def __len__(self) -> int:
        return self.steps

    def step(self, index: int, rank: int = 0, ranks: int = 1) -> list[AnyBatch]:
        """This rank's rows of step `index`, concatenated into micro-batches; see BatchSource."""
        cut = self._positions(index, ranks)
        batches = [self._batch(part) for part in cut[rank]]
        missing = max(len(parts) for parts in cut) - len(batches)
        silent = [index * self.rows_per_step]
        return batches + [self._batch(silent).silenced()] * missing

    def documents_of(self, index: int) -> list[Document]:
        (mine,) = self._positions(index, 1)
        return [self.documents[i] for part in mine for position in part for i in self._documents_at(position)]

    def heaviest(self, rank: int = 0, ranks: int = 1) -> AnyBatch:
        """This rank's micro-batch with the highest estimated memory, by tokens and, with less weight, targets and the tokens
        before branches; ties go to the longest document, which needs most memory for attention."""
        steps = min(self.steps, max(1, WEIGHED_ROWS // self.rows_per_step))
        parts = {
            (index, place): part for index in range(steps) for place, part in enumerate(self._positions(index, ranks)[rank])
        }
        if not parts:
            return self.step(0, rank, ranks)[0]
        tokens = {key: sum(self.row_tokens[self._row_at(position)] for position in part) for key, part in parts.items()}
        most = max(tokens.values())
        near = [key for key in parts if tokens[key] * (1 + TARGET_WEIGHT) >= most or self.prefixes.any()]

        def weight(key: tuple[int, int]) -> tuple[float, int]:
            documents = [document for position in parts[key] for document in self._documents_at(position)]
            return (
                tokens[key]
                + TARGET_WEIGHT * int(self.targets[documents].sum())
                + PREFIX_WEIGHT * int(self.prefixes[documents].sum())
            ), int(self.lengths[documents].max())

        return self._batch(parts[max(near, key=weight)])

    def _batch(self, positions: Sequence[int]) -> AnyBatch:
        return self._batch_of([i for position in positions for i in self._documents_at(position)])

    @abstractmethod
    def _batch_of(self, members: list[int]) -> AnyBatch:
        """The batch of these documents, by their places."""

    def _positions(self, index: int, ranks: int) -> list[list[list[int]]]:
        """Rows of step `index` by rank and micro-batch, as positions in the endless sequence of shuffled rows."""
        if not 0 <= index < self.steps:
            raise IndexError(index)
        first = index * self.rows_per_step
        positions = range(first, first + self.rows_per_step)
        tokens = {position: self.row_tokens[self._row_at(position)] for position in positions}
        return [_by_tokens(mine, tokens, self.micro_batch_tokens) for mine in share(positions, tokens, ranks)]

    def _row_at(self, position: int) -> int:
        return int(_order(len(self.rows), self.seed, position // len(self.rows))[position % len(self.rows)])

    def _documents_at(self, position: int) -> list[int]:
        return self._in_pass(position // len(self.rows))[self.rows[self._row_at(position)]].tolist()

    def _exchanged(self, number: int) -> Int[np.ndarray, " documents"]:
        keys = np.random.default_rng((self.seed, number, 1)).random(len(self.lengths))
        stand_ins = np.empty(len(self.lengths), dtype=np.int64)
        stand_ins[self._by_length] = np.lexsort((keys, self.lengths))
        return stand_ins


class PackedPlan(PackedRows[Batch]):
    """streams: what the batches hold besides the documents' tokens."""

    def __init__(self, documents: Sequence[Document], settings: TrainingSettings, streams: Streams | None = None):
        super().__init__(documents, settings)
        self.streams = streams

    def _batch_of(self, members: list[int]) -> Batch:
        if self.streams is None:
            return to_batch([self.documents[i] for i in members])
        return to_batch([self.streams.added_to(self.documents[i], i) for i in members], self.streams.kind)


def share(items: Sequence[int], tokens: Sequence[int] | dict[int, int], ranks: int) -> list[list[int]]:
    """Distributes items over ranks with about equal tokens: longest first, each to the rank with the fewest tokens."""
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


def _by_tokens(indices: Sequence[int], tokens: Sequence[int] | dict[int, int], limit: int) -> list[list[int]]:
    """Splits indices into consecutive groups of at most `limit` tokens; a single item may exceed it."""
    parts: list[list[int]] = []
    held = 0
    for index in indices:
        if not parts or held + tokens[index] > limit:
            parts.append([])
            held = 0
        parts[-1].append(index)
        held += tokens[index]
    return parts
