"""Tokenizes the rows of a dataset into documents to learn, and joins contexts of a row that begin alike.

    rows = read_rows(dataset, "train")                              # Parquet: row_id, messages, tools, ...
    documents, counts = tokenize(rows, tokenizer, max_length=2048)  # for model_ops.documents.packing
    for document in join_contexts(documents, most_tokens=4_096): ...

A conversation is one document if the chat template keeps earlier turns as they were; else (Qwen3, gpt-oss, DeepSeek) one for
each different context. `join_contexts` makes the longest context the trunk of a document, and every other a branch: what
follows the tokens that it shares with the trunk. A branch attends to that beginning and has its positions, so hidden states,
losses and gradients are those of the separate contexts (to rounding)."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from model_ops.documents.documents import Branch, Document, Documents
from model_ops.jobs import ModelError
from model_ops.rendering import (
    EndpointTokens,
    ReasoningBudget,
    RenderingSettings,
    Row,
    ServedTokens,
    Split,
    Unrenderable,
    iterate_rows,
    rendered_rows,
    server_messages,
)
from model_ops.training import Overflow


@dataclass(frozen=True)
class TokenizeCounts:
    """Counts of the rows: contexts = documents + joined_contexts - split_pieces + split_rows + dropped_rows + too_long_rows. A
    row has a context for each different beginning that a server would render, except the unrenderable_rows, which the chat
    template refuses. dropped_rows have no target; too_long_rows were left out (overflow "drop"); cut_rows lost cut_tokens
    ("truncate"); split_rows became split_pieces ("split"). text_arguments: tool calls whose arguments are no JSON object.
    joined_contexts became branches, which saved shared_tokens."""

    rows: int = 0
    contexts: int = 0
    unrenderable_rows: int = 0
    dropped_rows: int = 0
    too_long_rows: int = 0
    cut_rows: int = 0
    cut_tokens: int = 0
    split_rows: int = 0
    split_pieces: int = 0
    text_arguments: int = 0
    served_answers: int = 0
    joined_contexts: int = 0
    shared_tokens: int = 0
    row_tokens: int = 0
    target_tokens: int = 0
    unrenderable: dict[str, int] = field(default_factory=dict)


def read_documents(
    dataset: Path,
    split: Split,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    overflow: Overflow = "truncate",
    served: ServedTokens | EndpointTokens | None = None,
    joined_tokens: int = 0,
    budget: ReasoningBudget | None = None,
) -> tuple[Documents, dict[str, int]]:
    """`tokenize` over a split of a dataset, with the dataset's own settings of rendering; the counts as a dict."""
    documents, counts = tokenize(
        iterate_rows(dataset, split),
        tokenizer,
        max_length,
        overflow,
        RenderingSettings.read(dataset),
        served,
        joined_tokens,
        budget,
    )
    return documents, asdict(counts)


def tokenize(
    rows: Iterable[Row],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    overflow: Overflow = "truncate",
    rendering: RenderingSettings | None = None,
    served: ServedTokens | EndpointTokens | None = None,
    joined_tokens: int = 0,
    budget: ReasoningBudget | None = None,
) -> tuple[Documents, TokenizeCounts]:
    """Documents with the answers' tokens as targets; documents without a target are dropped and counted. overflow, for a
    document of more than max_length tokens: "truncate", "split" into documents with the row's id, or "drop". joined_tokens:
    contexts that begin alike become one document of at most so many tokens; 0 leaves them separate. served: token ids from the
    log, learnt instead of rendered ones. budget: of answers with longer reasoning only its end is learnt, and nothing of other
    rows. Raises ModelError if the template refuses more than rendering.most_unrenderable of the rows."""
    rendering = rendering or RenderingSettings()
    counts: Counter[str] = Counter()
    refused = RefusedRows()
    contexts = _contexts(rows, tokenizer, rendering, served, counts, refused, budget)
    documents = Documents.gather(_joined(_documents(contexts, max_length, overflow, counts), joined_tokens, counts))
    refused.check(counts["rows"], rendering.most_unrenderable)
    return documents, TokenizeCounts(
        **counts,
        unrenderable=dict(refused.reasons.most_common()),
        row_tokens=int(documents.lengths.sum()),
        target_tokens=int(documents.target_tokens.sum()),
    )


def _joined(documents: Iterable[Document], joined_tokens: int, counts: Counter[str]) -> Iterator[Document]:
    for document in join_contexts(documents, joined_tokens) if joined_tokens else documents:
        counts["joined_contexts"] += len(document.branches)
        counts["shared_tokens"] += sum(branch.at for branch in document.branches)
        yield document


class RefusedRows:
    """Rows that the chat template refuses, by reason, each with the id of its first row."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, row: Row, error: Unrenderable) -> None:
        self.reasons[str(error)] += 1
        self.first.setdefault(str(error), row.row_id)

    def check(self, rows: int, most: float) -> None:
        """Raises ModelError if more than a share `most` of the rows is refused."""
        refused = self.reasons.total()
        if refused > most * rows:
            reason, count = self.reasons.most_common(1)[0]
            raise ModelError(
                f"the chat template cannot render {refused} of {rows} rows, more than the allowed share of {most:g}; most "
                f"often, in {count} rows such as {self.first[reason]}: {reason}. `millrace show` prints them; change the rows, "
                "the model's chat_template.jinja, or datasets.sft.most_unrenderable"
            )


def _documents(contexts: Iterable[Document], max_length: int, overflow: Overflow, counts: Counter[str]) -> Iterator[Document]:
    for context in contexts:
        counts["contexts"] += 1
        length, cut = len(context), max_length
        if length > max_length and overflow == "drop":
            counts["too_long_rows"] += 1
            continue
        if length > max_length and overflow == "split":
            cut = length
        elif length > max_length:
            counts["cut_rows"] += 1
            counts["cut_tokens"] += length - max_length
        pieces = [
            piece
            for piece in split_document(Document(context.row_id, context.input_ids[:cut], context.targets[:cut]), max_length)
            if piece.target_tokens
        ]
        if not pieces:
            counts["dropped_rows"] += 1
        elif cut > max_length:
            counts["split_rows"] += 1
            counts["split_pieces"] += len(pieces)
        yield from pieces


def split_document(document: Document, max_length: int) -> list[Document]:
    """Splits a document into pieces of at most max_length tokens. A piece begins with the last token of the piece before it, so
    every target is predicted in exactly one; positions start from 0 in each."""
    starts = range(0, max(1, len(document) - 1), max_length - 1)
    return [
        Document(
            document.row_id,
            document.input_ids[start : start + max_length],
            document.targets[start : start + max_length],
            {name: stream[start : start + max_length] for name, stream in document.streams.items()},
        )
        for start in starts
    ]


def _contexts(
    rows: Iterable[Row],
    tokenizer: PreTrainedTokenizerBase,
    rendering: RenderingSettings,
    served: ServedTokens | EndpointTokens | None,
    counts: Counter[str],
    refused: RefusedRows,
    budget: ReasoningBudget | None,
) -> Iterator[Document]:
    for rendered in rendered_rows(rows, tokenizer, rendering, served, budget):
        counts["rows"] += 1
        counts["text_arguments"] += server_messages.unreadable_arguments(rendered.row.messages)
        counts["served_answers"] += rendered.served_answers
        if rendered.refusal is not None:
            refused.add(rendered.row, rendered.refusal)
            counts["unrenderable_rows"] += 1
            continue
        nothing = (np.zeros(0, dtype=np.int32), np.zeros(0, dtype=bool))  # a dropped row
        for input_ids, targets in rendered.contexts or [nothing]:
            yield Document(rendered.row.row_id, input_ids, targets)


FEWEST_SHARED = 16
"""Tokens in common below which a context stays a document of its own."""


def join_contexts(contexts: Iterable[Document], most_tokens: int) -> Iterator[Document]:
    """The documents with neighbours of the same row joined where they begin alike, up to `most_tokens` tokens."""
    for _, of_row in itertools.groupby(contexts, key=lambda document: document.row_id):
        waiting = list(of_row)
        while waiting:
            longest = max(range(len(waiting)), key=lambda place: len(waiting[place]))
            trunk = waiting.pop(longest)
            document, waiting = _shared_contexts_joined(trunk, waiting, most_tokens)
            yield document


def _shared_contexts_joined(trunk: Document, others: list[Document], most_tokens: int) -> tuple[Document, list[Document]]:
    """The trunk with the other contexts that fit as branches, and the contexts that are left."""
    total, parts, branches, left = len(trunk), [trunk], [], []
    for other in others:
        at = _shared(trunk, other)
        length = len(other) - at
        if at < FEWEST_SHARED or total + length > most_tokens:
            left.append(other)
            continue
        total += length
        branches.append(Branch(at, length))
        parts.append(Document(other.row_id, other.input_ids[at:], other.targets[at:]))
    if not branches:
        return trunk, left
    return Document(
        trunk.row_id,
        np.concatenate([part.input_ids for part in parts]),
        np.concatenate([part.targets for part in parts]),
        branches=tuple(branches),
    ), left


def _shared(trunk: Document, other: Document) -> int:
    """Number of first tokens that `other` shares with the trunk. It keeps at least one token before its first target, because
    that token's output predicts the target."""
    length = min(len(trunk), len(other))
    different = np.flatnonzero(trunk.input_ids[:length] != other.input_ids[:length])
    first_target = 1 + int(np.argmax(other.targets[1:])) if other.targets[1:].any() else 1
    return min(int(different[0]) if len(different) else length, first_target - 1)
