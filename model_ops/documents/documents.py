"""Tokenized documents: a single one, many in compact arrays, their batch, and whether two tokenizers read them alike.

documents = Documents.gather([Document("row-1", input_ids, targets), ...])
batch = to_batch(documents[3:5])
first_difference(teacher_tokenizer, student_tokenizer, of_teacher, of_student)      # None, or "token id 17 is another token"
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, overload

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from transformers import PreTrainedTokenizerBase

from model_ops.tensors import IGNORED, AnyBatch, Batch

GATHERED_AT_ONCE = 4_096


class Branch(NamedTuple):
    """`length` tokens that continue the first `at` tokens of their document's trunk; with `at` 0 they continue nothing."""

    at: int
    length: int


@dataclass(frozen=True)
class Document:
    """One document: its tokens, the mask of targets, and `streams` with one value per token; a batch contains a stream if its
    class declares a field of that name. With `branches`, the tokens are those of a trunk and then of each branch, whose first
    token is never a target."""

    row_id: str
    input_ids: Shaped[np.ndarray, " tokens"]
    targets: Bool[np.ndarray, " tokens"]
    streams: dict[str, Shaped[np.ndarray, ...]] = field(default_factory=dict)
    """Of the kind of batch: as a rule a value for each token; of a pair's margin and weight a single one."""
    branches: tuple[Branch, ...] = ()

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def target_tokens(self) -> int:
        """Number of targets; the first token of a document never counts, because nothing precedes it."""
        return int(self.targets[1:].sum())

    @property
    def segments(self) -> list[Branch]:
        """The trunk, as a branch at 0, and the branches."""
        return [Branch(0, len(self) - sum(branch.length for branch in self.branches)), *self.branches]


class Documents(Sequence[Document]):
    """Many documents without further streams, in arrays of five bytes per token. Indexing creates a Document. branches: of the
    documents that have some, by index."""

    def __init__(
        self,
        row_ids: list[str],
        lengths: Int[np.ndarray, " documents"],
        input_ids: Int[np.ndarray, " tokens"],
        targets: Bool[np.ndarray, " tokens"],
        branches: dict[int, tuple[Branch, ...]] | None = None,
    ):
        self.row_ids, self.lengths, self.input_ids, self.targets = row_ids, lengths, input_ids, targets
        self.branches = branches or {}
        self.starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])

    @classmethod
    def gather(cls, documents: Iterable[Document]) -> Documents:
        row_ids: list[str] = []
        branches: dict[int, tuple[Branch, ...]] = {}
        parts = [(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, bool))]
        rest = iter(documents)
        while part := list(islice(rest, GATHERED_AT_ONCE)):
            branches |= {index: document.branches for index, document in enumerate(part, len(row_ids)) if document.branches}
            row_ids += [document.row_id for document in part]
            parts.append(
                (
                    np.array([len(document) for document in part]),
                    np.concatenate([document.input_ids for document in part]).astype(np.int32, copy=False),
                    np.concatenate([document.targets for document in part]),
                )
            )
        lengths, input_ids, targets = (np.concatenate(stream) for stream in zip(*parts, strict=True))
        return cls(row_ids, lengths, input_ids, targets, branches)

    def __len__(self) -> int:
        return len(self.row_ids)

    @overload
    def __getitem__(self, index: int) -> Document: ...
    @overload
    def __getitem__(self, index: slice) -> list[Document]: ...
    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        tokens = slice(self.starts[index], self.starts[index + 1])
        return Document(
            self.row_ids[index], self.input_ids[tokens], self.targets[tokens], branches=self.branches.get(index, ())
        )

    @property
    def target_tokens(self) -> Int[np.ndarray, " documents"]:
        """Number of targets of each document; see Document.target_tokens."""
        before = np.concatenate([[0], np.cumsum(self.targets, dtype=np.int64)])
        first = np.where(self.lengths > 0, self.starts[:-1] + 1, self.starts[:-1])
        return before[self.starts[1:]] - before[first]


def lengths_and_targets(documents: Sequence[Document]) -> tuple[Int[np.ndarray, " documents"], Int[np.ndarray, " documents"]]:
    if isinstance(documents, Documents):
        return documents.lengths, documents.target_tokens
    return (
        np.array([len(document) for document in documents], dtype=np.int64),
        np.array([document.target_tokens for document in documents], dtype=np.int64),
    )


def prefix_tokens(documents: Sequence[Document]) -> Int[np.ndarray, " documents"]:
    """Number of tokens before the branches of each document, which attention gathers once more for each branch."""
    starts = np.zeros(len(documents), dtype=np.int64)
    branches = (
        documents.branches
        if isinstance(documents, Documents)
        else {place: document.branches for place, document in enumerate(documents) if document.branches}
    )
    for place, of_document in branches.items():
        starts[place] = sum(branch.at for branch in of_document)
    return starts


@overload
def to_batch(documents: Sequence[Document]) -> Batch: ...
@overload
def to_batch(documents: Sequence[Document], kind: type[AnyBatch]) -> AnyBatch: ...
def to_batch(documents, kind=Batch):
    """Concatenates documents into a batch of class `kind`, with labels shifted so that position t predicts labels[t]."""
    lengths = [len(document) for document in documents]
    input_ids = np.concatenate([document.input_ids for document in documents]).astype(np.int64)
    labels = np.full(len(input_ids), IGNORED, dtype=np.int64)
    start = 0
    for document, length in zip(documents, lengths, strict=True):
        labels[start : start + length - 1] = np.where(document.targets[1:], document.input_ids[1:], IGNORED)
        start += length
    segments = [segment for document in documents for segment in document.segments]
    return kind(
        input_ids=torch.from_numpy(input_ids),
        position_ids=torch.from_numpy(np.concatenate([np.arange(at, at + length) for at, length in segments])),
        labels=torch.from_numpy(labels),
        weights=torch.ones(len(input_ids)),
        document_lengths=[length for _, length in segments],
        document_prefixes=_prefixes(documents, lengths) if prefix_tokens(documents).any() else None,
        row_ids=[document.row_id for document in documents],
        **{
            name: torch.from_numpy(np.concatenate([document.streams[name] for document in documents]))
            for name in (documents[0].streams if documents else {})
        },
    )


def _prefixes(documents: Sequence[Document], lengths: list[int]) -> list[tuple[int, int]]:
    starts = np.cumsum([0, *lengths]).tolist()
    return [(start, segment.at) for start, document in zip(starts, documents, strict=False) for segment in document.segments]


def first_difference(
    teacher: PreTrainedTokenizerBase,
    student: PreTrainedTokenizerBase,
    of_teacher: Sequence[Document],
    of_student: Sequence[Document],
) -> str | None:
    """The first difference: a token with another id, or a row with other tokens or targets; None without a difference.
    of_teacher, of_student: the documents of the same rows, read with each tokenizer."""
    return _first_other_id(teacher, student) or _first_other_row(of_teacher, of_student)


def _first_other_id(teacher: PreTrainedTokenizerBase, student: PreTrainedTokenizerBase) -> str | None:
    theirs = {token_id: token for token, token_id in teacher.get_vocab().items()}
    ours = {token_id: token for token, token_id in student.get_vocab().items()}
    other = [token_id for token_id in theirs.keys() & ours.keys() if theirs[token_id] != ours[token_id]]
    return f"token id {min(other)} is another token" if other else None


def _first_other_row(of_teacher: Sequence[Document], of_student: Sequence[Document]) -> str | None:
    for theirs, ours in zip(of_teacher, of_student, strict=False):
        if (
            theirs.row_id != ours.row_id
            or not np.array_equal(theirs.input_ids, ours.input_ids)
            or not np.array_equal(theirs.targets, ours.targets)
            or theirs.branches != ours.branches
        ):
            return f"row {ours.row_id} is rendered as other tokens"
    if len(of_teacher) != len(of_student):
        return f"the chat templates leave {len(of_teacher)} and {len(of_student)} documents of the rows"
    return None
