"""Conversations into tokens, with a mark on every token the assistant wrote.

    rows = read_rows(dataset, "train")                              # Parquet: row_id, messages, tools, ...
    documents, counts = tokenize(rows, tokenizer, max_length=2048)  # for model_ops.training.packing

The marks come from the chat template's {% generation %} blocks. A template without them is rendered turn by turn and
each answer is what it adds; a template that rewrites earlier turns is refused, since then no mark would be right. The
end-of-turn token belongs to the answer. An assistant message with `"weight": 0` is context, not a target.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import jinja2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from model_ops.errors import ModelError
from model_ops.training.batch import IGNORED
from model_ops.training.documents import Document

Split = Literal["train", "validation", "test"]
Span = tuple[int, int]

GENERATION_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class Row:
    """One conversation: OpenAI-shaped messages and the tools that were offered. Or, with no messages, a text that is
    learnt as it stands, or token ids with their labels (the id itself, or IGNORED where nothing is learnt)."""

    row_id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    labels: list[int] | None = None


@dataclass(frozen=True)
class TokenizeCounts:
    """rows = the documents + dropped_rows (nothing to predict); cut_rows lost cut_tokens at their end."""

    rows: int
    dropped_rows: int
    cut_rows: int
    cut_tokens: int
    row_tokens: int
    target_tokens: int


def read_rows(dataset: Path, split: Split) -> list[Row]:
    """The rows of one split. Raises ModelError where the file, a column or a row's JSON is not as it should be."""
    path = Path(dataset) / f"{split}.parquet"
    if not path.exists():
        raise ModelError(f"dataset {dataset} has no {split}.parquet")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ModelError(f"{path} cannot be read as Parquet: {error}") from error
    for column in ("row_id", "messages"):
        if column not in table.column_names:
            raise ModelError(f"{path} has no column {column}; its columns are {', '.join(table.column_names)}")
    columns = [
        table[name].to_pylist() if name in table.column_names else [None] * len(table)
        for name in ("row_id", "messages", "tools", "text", "token_ids", "labels")
    ]
    rows = []
    for row_id, messages, offered, text, token_ids, labels in zip(*columns, strict=True):
        try:
            row = Row(str(row_id), json.loads(messages), json.loads(offered) if offered else None, text, token_ids, labels)
        except (ValueError, TypeError) as error:
            raise ModelError(f"{path}: messages or tools of row {row_id} are not JSON text") from error
        if not isinstance(row.messages, list) or not all(isinstance(message, dict) for message in row.messages):
            raise ModelError(f"{path}: messages of row {row_id} are not a list of objects")
        rows.append(row)
    return rows


def read_documents(dataset: Path, split: Split, tokenizer: PreTrainedTokenizerBase,
                   max_length: int) -> tuple[list[Document], dict[str, int]]:
    """`tokenize` over a split of a dataset; the counts as a dict."""
    documents, counts = tokenize(read_rows(dataset, split), tokenizer, max_length)
    return documents, asdict(counts)


def tokenize(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase,
             max_length: int) -> tuple[list[Document], TokenizeCounts]:
    """Documents with assistant tokens as targets; rows without one are dropped, longer rows cut, both counted.

    Raises ModelError where the tokenizer has no chat template or the template refuses a row or rewrites its turns, and
    where a row's token ids are not this tokenizer's.
    """
    if not tokenizer.is_fast:
        raise ModelError("the tokenizer has no tokenizer.json; convert it to the tokenizers format first")
    chats = any(row.text is None and row.token_ids is None for row in rows)
    if chats and not isinstance(tokenizer.chat_template, str):
        raise ModelError("the tokenizer has no single chat template; put a chat_template.jinja beside it")
    texts, spans = [], []
    for row in rows:
        if row.token_ids is not None:
            continue
        text, answered = (row.text, None) if row.text is not None else render_with_answers(row, tokenizer)
        texts.append(text)
        spans.append(answered)
    encoded = zip(_encode(tokenizer, texts), spans, strict=True)
    documents, cut_rows, cut_tokens, dropped = [], 0, 0, 0
    for row in rows:
        input_ids, targets = _given(row, tokenizer) if row.token_ids is not None else _marked(*next(encoded))
        if len(input_ids) > max_length:
            cut_rows += 1
            cut_tokens += len(input_ids) - max_length
            input_ids, targets = input_ids[:max_length], targets[:max_length]
        document = Document(row.row_id, input_ids, targets)
        if document.target_tokens:
            documents.append(document)
        else:
            dropped += 1
    return documents, TokenizeCounts(
        rows=len(rows), dropped_rows=dropped, cut_rows=cut_rows, cut_tokens=cut_tokens,
        row_tokens=sum(len(document) for document in documents),
        target_tokens=sum(document.target_tokens for document in documents),
    )


def _marked(encoding: Any, answered: list[Span] | None) -> tuple[np.ndarray, np.ndarray]:
    """A text's tokens and which of them are learnt: those inside the answers; all where there are no answers to tell."""
    input_ids = np.array(encoding.ids, dtype=np.int32)
    if answered is None:
        return input_ids, np.ones(len(input_ids), dtype=bool)
    begins = np.array([begin for begin, _ in encoding.offsets], dtype=np.int64)
    ends = np.array([end for _, end in encoding.offsets], dtype=np.int64)
    targets = np.zeros(len(input_ids), dtype=bool)
    for begin, end in answered:
        targets |= (begins >= begin) & (ends <= end) & (ends > begins)
    return input_ids, targets


def _given(row: Row, tokenizer: PreTrainedTokenizerBase) -> tuple[np.ndarray, np.ndarray]:
    """A pre-tokenized row as it stands. Raises ModelError where it cannot be of this tokenizer."""
    input_ids = np.array(row.token_ids, dtype=np.int32)
    strange = input_ids[(input_ids < 0) | (input_ids >= len(tokenizer))]
    if len(strange):
        raise ModelError(f"row {row.row_id}: token id {strange[0]} is outside the tokenizer's vocabulary of {len(tokenizer)}; "
                         "pre-tokenized rows have to be made with the tokenizer of the model that learns them")
    labels = input_ids if row.labels is None else np.array(row.labels, dtype=np.int32)
    if len(labels) != len(input_ids):
        raise ModelError(f"row {row.row_id}: {len(input_ids)} token ids, but {len(labels)} labels")
    return input_ids, labels != IGNORED


def render(row: Row, tokenizer: PreTrainedTokenizerBase, add_generation_prompt: bool = False) -> str:
    """The row's text by the tokenizer's template. Raises ModelError naming the row where the template refuses it."""
    return _render(row, row.messages, tokenizer, add_generation_prompt=add_generation_prompt)[0]


def render_with_answers(row: Row, tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[Span]]:
    """The row's text and where in it (characters) the answers stand that are to be learnt."""
    assistants = [message for message in row.messages if message.get("role") == "assistant"]
    if GENERATION_MARK.search(tokenizer.chat_template):
        text, spans = _render(row, row.messages, tokenizer, marked=True)
    else:
        text, spans = _answers_by_prefix(row, tokenizer)
    learnt = [message.get("weight", 1) != 0 for message in assistants]
    if len(spans) != len(assistants):
        if not all(learnt):
            raise ModelError(f"row {row.row_id}: the chat template marks {len(spans)} answers of {len(assistants)}, so "
                             "weight 0 cannot be told apart; mark every assistant message with {% generation %}")
        learnt = [True] * len(spans)
    return text, [_with_end_of_turn(text, span, tokenizer) for span, kept in zip(spans, learnt, strict=True) if kept]


def end_of_turn_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The special token that the template puts at the end of an answer, if it does: generation must stop there."""
    row = Row("probe", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    text, spans = render_with_answers(row, tokenizer)
    ids = tokenizer.encode(text[:spans[-1][1]], add_special_tokens=False) if spans else []
    return [ids[-1]] if ids and ids[-1] in tokenizer.all_special_ids else []


def _answers_by_prefix(row: Row, tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[Span]]:
    """Answer i is what rendering message i adds after the generation prompt; only sound if earlier turns stay."""
    text, _ = _render(row, row.messages, tokenizer)
    spans = []
    for index, message in enumerate(row.messages):
        if message.get("role") != "assistant":
            continue
        before, _ = _render(row, row.messages[:index], tokenizer, add_generation_prompt=True)
        after, _ = _render(row, row.messages[:index + 1], tokenizer)
        if not (text.startswith(after) and after.startswith(before)):
            raise ModelError(f"row {row.row_id}: the chat template has no generation marks and rewrites earlier turns, "
                             "so answers cannot be told apart; put {% generation %} blocks into the template")
        spans.append((len(before), _end_of_answer(after, len(before), tokenizer)))
    return text, spans


def _end_of_answer(text: str, begin: int, tokenizer: PreTrainedTokenizerBase) -> int:
    """Behind the last special token of the answer, or at the end of its text where the template adds none."""
    ends = [place + len(token) for token in tokenizer.all_special_tokens if (place := text.rfind(token, begin)) >= 0]
    return max(ends) if ends and not text[max(ends):].strip() else len(text.rstrip("\n"))


def _with_end_of_turn(text: str, span: Span, tokenizer: PreTrainedTokenizerBase) -> Span:
    """Some templates close their generation block before the end-of-turn token; it is learnt all the same."""
    begin, end = span
    if not text[begin:end].endswith(tuple(tokenizer.all_special_tokens)):
        for token in tokenizer.all_special_tokens:
            if text.startswith(token, end):
                return begin, end + len(token)
    return begin, end


def _render(row: Row, messages: list[dict], tokenizer: PreTrainedTokenizerBase, marked: bool = False,
            add_generation_prompt: bool = False) -> tuple[str, list[Span]]:
    try:
        rendered, spans = render_jinja_template(
            conversations=[messages], tools=row.tools, chat_template=tokenizer.chat_template,
            return_assistant_tokens_mask=marked, add_generation_prompt=add_generation_prompt,
            **tokenizer.special_tokens_map,
        )
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"row {row.row_id}: the chat template cannot render its messages "
                         f"({type(error).__name__}); check their roles and fields") from error
    return rendered[0], [tuple(span) for span in spans[0]] if marked else []


def _encode(tokenizer: PreTrainedTokenizerBase, texts: list[str], at_once: int = 512) -> Iterable[Any]:
    """Encodings of all texts, batch after batch, never cut or padded whatever the tokenizer's files say."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    for start in range(0, len(texts), at_once):
        yield from backend.encode_batch(texts[start:start + at_once], add_special_tokens=False)
