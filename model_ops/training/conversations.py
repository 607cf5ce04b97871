"""Tokenizes the rows of a dataset into documents to learn.

    rows = read_rows(dataset, "train")                              # Parquet: row_id, messages, tools, ...
    documents, counts = tokenize(rows, tokenizer, max_length=2048)  # for model_ops.training.packing

What is learnt of a conversation is what the model has to say after the server's own prompts (model_ops.rendering). A
conversation is one document if the chat template keeps earlier turns as they were; else it is a document for each different
context. An assistant message with `"weight": 0` is context, not a target. A row that the template refuses is left out and
counted by reason; if more than a stated share is refused, that is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from model_ops.batch import IGNORED
from model_ops.errors import ModelError
from model_ops.rendering.chat_template import ChatTemplate, Unrenderable
from model_ops.rendering.learnt_turns import LearntTurn, learnt_turns
from model_ops.rendering.row import ROWS_AT_ONCE, Row, Split, iterate_rows
from model_ops.rendering.server_messages import unreadable_arguments
from model_ops.rendering.settings import RenderingSettings
from model_ops.rendering.tokens import Context, TurnEncoder, TurnTokens, joined
from model_ops.training.documents import Document, Documents
from model_ops.training.settings import Overflow

TOOLS = [{"type": "function", "function": {
    "name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}}]
ENDED = ({"role": "assistant", "content": "b"},
         {"role": "assistant", "content": "", "tool_calls": [
             {"id": "call12345", "type": "function", "function": {"name": "look", "arguments": "{}"}}]})
"""Answers whose ends of turn are looked for."""


@dataclass(frozen=True)
class TokenizeCounts:
    """Counts of the rows: contexts = documents - split_pieces + split_rows + dropped_rows + too_long_rows.

    A row has a context for each different beginning that a server would render (1 for most templates), except the
    unrenderable_rows, which the chat template refuses; unrenderable has them by reason. The others count contexts: dropped_rows
    have no target; too_long_rows were left out for their length (overflow "drop"); cut_rows lost cut_tokens at their end
    ("truncate"); split_rows became split_pieces ("split"). text_arguments: tool calls whose arguments are no JSON object; they
    stay text.
    """

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
    row_tokens: int = 0
    target_tokens: int = 0
    unrenderable: dict[str, int] = field(default_factory=dict)


def read_documents(dataset: Path, split: Split, tokenizer: PreTrainedTokenizerBase, max_length: int,
                   overflow: Overflow = "truncate") -> tuple[Documents, dict[str, int]]:
    """`tokenize` over a split of a dataset, with the dataset's own settings of rendering; the counts as a dict."""
    documents, counts = tokenize(iterate_rows(dataset, split), tokenizer, max_length, overflow, RenderingSettings.read(dataset))
    return documents, asdict(counts)


def tokenize(rows: Iterable[Row], tokenizer: PreTrainedTokenizerBase, max_length: int, overflow: Overflow = "truncate",
             rendering: RenderingSettings | None = None) -> tuple[Documents, TokenizeCounts]:
    """Documents with the answers' tokens as targets; documents without a target are dropped and counted.

    overflow, for a document of more than max_length tokens: "truncate" cuts off its end; "split" makes several documents with
    the row's id; "drop" leaves it out. Rows are processed a few hundred at a time; documents take five bytes per token.
    Raises ModelError if the tokenizer has no chat template or no tokenizer.json, if the template refuses more than
    rendering.most_unrenderable of the rows, or if a row's token ids are outside this tokenizer's vocabulary.
    """
    rendering = rendering or RenderingSettings()
    counts: Counter[str] = Counter()
    refused = RefusedRows()
    documents = Documents.gather(_documents(rows, tokenizer, max_length, overflow, rendering, counts, refused))
    refused.check(counts["rows"], rendering.most_unrenderable)
    return documents, TokenizeCounts(**counts, unrenderable=dict(refused.reasons.most_common()),
                                     row_tokens=int(documents.lengths.sum()),
                                     target_tokens=int(documents.target_tokens.sum()))


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
                "the model's chat_template.jinja, or datasets.sft.most_unrenderable")


def _documents(rows: Iterable[Row], tokenizer: PreTrainedTokenizerBase, max_length: int, overflow: Overflow,
               rendering: RenderingSettings, counts: Counter[str], refused: RefusedRows) -> Iterator[Document]:
    """The documents of the rows; updates `counts` and `refused`."""
    for row_id, input_ids, targets in _contexts(rows, tokenizer, rendering, counts, refused):
        counts["contexts"] += 1
        length, cut = len(input_ids), max_length
        if length > max_length and overflow == "drop":
            counts["too_long_rows"] += 1
            continue
        if length > max_length and overflow == "split":
            cut = length
        elif length > max_length:
            counts["cut_rows"] += 1
            counts["cut_tokens"] += length - max_length
        pieces = [piece for piece in split_document(Document(row_id, input_ids[:cut], targets[:cut]), max_length)
                  if piece.target_tokens]
        if not pieces:
            counts["dropped_rows"] += 1
        elif cut > max_length:
            counts["split_rows"] += 1
            counts["split_pieces"] += len(pieces)
        yield from pieces


def split_document(document: Document, max_length: int) -> list[Document]:
    """Splits a document into pieces of at most max_length tokens; every target is predicted in exactly one piece.

    A piece begins with the last token of the piece before it, because the first token of a piece is never predicted. Positions
    start from 0 in each piece, and a piece does not attend to earlier ones.
    """
    starts = range(0, max(1, len(document) - 1), max_length - 1)
    return [Document(document.row_id, document.input_ids[start:start + max_length], document.targets[start:start + max_length],
                     {name: stream[start:start + max_length] for name, stream in document.streams.items()})
            for start in starts]


def _contexts(rows: Iterable[Row], tokenizer: PreTrainedTokenizerBase, rendering: RenderingSettings, counts: Counter[str],
              refused: RefusedRows) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(row id, tokens, mask of targets) of every context, processing a few hundred rows at a time."""
    encoder, rest = TurnEncoder(tokenizer), iter(rows)
    while part := list(islice(rest, ROWS_AT_ONCE)):
        counts["rows"] += len(part)
        counts["text_arguments"] += sum(unreadable_arguments(row.messages) for row in part)
        turns: list[list[LearntTurn]] = []
        kept: list[Row] = []
        for row in part:
            try:
                turns.append(learnt_turns(row, ChatTemplate.of(tokenizer), rendering.thinking) if row.messages else [])
            except Unrenderable as error:
                refused.add(row, error)
                counts["unrenderable_rows"] += 1
                continue
            kept.append(row)
        texts = iter(encoder.texts([row.text for row in kept if row.token_ids is None and row.text is not None]))
        for row, found in zip(kept, encoder.turns(turns), strict=True):
            for input_ids, targets in _of_row(row, texts, found, tokenizer):
                yield row.row_id, input_ids, targets


def _of_row(row: Row, texts: Iterator[np.ndarray], turns: list[TurnTokens],
            tokenizer: PreTrainedTokenizerBase) -> list[Context]:
    if row.token_ids is not None:
        return [_given(row, tokenizer)]
    if row.text is not None:
        input_ids = next(texts)
        return [(input_ids, np.ones(len(input_ids), dtype=bool))]
    return joined(turns) or [(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=bool))]  # nothing to learn: a dropped row


def _given(row: Row, tokenizer: PreTrainedTokenizerBase) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and targets of a pre-tokenized row. Raises ModelError if an id is outside this tokenizer's vocabulary."""
    input_ids = _integers(row, "token_ids", row.token_ids)
    strange = input_ids[(input_ids < 0) | (input_ids >= len(tokenizer))]
    if len(strange):
        raise ModelError(f"row {row.row_id}: token id {strange[0]} is outside the tokenizer's vocabulary of {len(tokenizer)}; "
                         "make pre-tokenized rows with the tokenizer of the model that is trained")
    labels = input_ids if row.labels is None else _integers(row, "labels", row.labels)
    if len(labels) != len(input_ids):
        raise ModelError(f"row {row.row_id}: {len(input_ids)} token ids, but {len(labels)} labels; give one label for each id")
    other = np.flatnonzero((labels != input_ids) & (labels != IGNORED))
    if len(other):
        raise ModelError(f"row {row.row_id}: label {labels[other[0]]} at position {other[0]} is neither that position's token "
                         f"({input_ids[other[0]]}) nor {IGNORED}; give labels that are not shifted")
    return input_ids.astype(np.int32), labels != IGNORED


def _integers(row: Row, name: str, values: list[int]) -> np.ndarray:
    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"row {row.row_id}: {name} holds a value that is not an integer") from error


def end_of_turn_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the special tokens that end answers and tool calls, where generation must stop; [] if there is none, no template,
    or a template that refuses a single question and answer."""
    if not tokenizer.chat_template:
        return []
    template, encoder, found = ChatTemplate.of(tokenizer), TurnEncoder(tokenizer), []
    for answer in ENDED:
        row = Row("probe", [{"role": "user", "content": "a"}, answer], TOOLS if "tool_calls" in answer else None)
        try:
            found += [int(turn.answer[-1]) for turn in encoder.turns([learnt_turns(row, template)])[0] if len(turn.answer)]
        except Unrenderable:  # the template needs rows of another form, so its end of turn is unknown
            continue
    return [token for token in dict.fromkeys(found) if tokenizer.convert_ids_to_tokens(token) in encoder.specials]
