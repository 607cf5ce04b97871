"""Tokenizes conversations and marks the assistant's tokens as targets.

    rows = read_rows(dataset, "train")                              # Parquet: row_id, messages, tools, ...
    documents, counts = tokenize(rows, tokenizer, max_length=2048)  # for model_ops.training.packing

The marks come from the chat template's {% generation %} blocks. A template without them is rendered turn by turn, and each
answer is the text that its turn adds; this fails for a template that rewrites earlier turns, which is refused. The end-of-turn
token belongs to the answer. An assistant message with `"weight": 0` is context, not a target.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import jinja2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from model_ops.batch import IGNORED
from model_ops.errors import ModelError
from model_ops.training.documents import Document, Documents
from model_ops.training.settings import Overflow

Split = Literal["train", "validation", "test"]
Span = tuple[int, int]
ROWS_AT_ONCE = 512

GENERATION_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class Row:
    """One conversation: messages and tools in OpenAI's form. Without messages: a text whose tokens are all targets, or token
    ids with their labels (the id itself, or IGNORED)."""

    row_id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    labels: list[int] | None = None


@dataclass(frozen=True)
class TokenizeCounts:
    """Counts of the rows: rows = documents - split_pieces + split_rows + dropped_rows + too_long_rows.

    dropped_rows have no target; too_long_rows were left out for their length (overflow "drop"); cut_rows lost cut_tokens at
    their end ("truncate"); split_rows became split_pieces ("split").
    """

    rows: int = 0
    dropped_rows: int = 0
    too_long_rows: int = 0
    cut_rows: int = 0
    cut_tokens: int = 0
    split_rows: int = 0
    split_pieces: int = 0
    row_tokens: int = 0
    target_tokens: int = 0


def read_rows(dataset: Path, split: Split) -> list[Row]:
    """The rows of one split. Raises ModelError if the file or a column is missing, or a row's JSON is invalid."""
    return list(iterate_rows(dataset, split))


def iterate_rows(dataset: Path, split: Split) -> Iterator[Row]:
    """Yields the rows of one split, reading a few at a time; see `read_rows`."""
    path = Path(dataset) / f"{split}.parquet"
    if not path.exists():
        raise ModelError(f"dataset {dataset} has no {split}.parquet; give the directory of a dataset with this split")
    try:
        with pq.ParquetFile(path) as file:
            for column in ("row_id", "messages"):
                if column not in file.schema_arrow.names:
                    raise ModelError(f"{path} has no column {column}; its columns are {', '.join(file.schema_arrow.names)}")
            for table in file.iter_batches(ROWS_AT_ONCE):
                yield from _rows_of(table, path)
    except (pa.ArrowException, OSError) as error:
        raise ModelError(f"{path} cannot be read as Parquet: {error}") from error


def _rows_of(table: pa.RecordBatch, path: Path) -> Iterator[Row]:
    columns = [
        table[name].to_pylist() if name in table.schema.names else [None] * len(table)
        for name in ("row_id", "messages", "tools", "text", "token_ids", "labels")
    ]
    for row_id, messages, offered, text, token_ids, labels in zip(*columns, strict=True):
        try:
            row = Row(str(row_id), json.loads(messages), json.loads(offered) if offered else None, text, token_ids, labels)
        except (ValueError, TypeError) as error:
            raise ModelError(f"{path}: messages or tools of row {row_id} are not JSON text") from error
        if not isinstance(row.messages, list) or not all(isinstance(message, dict) for message in row.messages):
            raise ModelError(f"{path}: messages of row {row_id} are not a list of objects")
        yield row


def read_documents(dataset: Path, split: Split, tokenizer: PreTrainedTokenizerBase, max_length: int,
                   overflow: Overflow = "truncate") -> tuple[Documents, dict[str, int]]:
    """`tokenize` over a split of a dataset; the counts as a dict."""
    documents, counts = tokenize(iterate_rows(dataset, split), tokenizer, max_length, overflow)
    return documents, asdict(counts)


def tokenize(rows: Iterable[Row], tokenizer: PreTrainedTokenizerBase, max_length: int,
             overflow: Overflow = "truncate") -> tuple[Documents, TokenizeCounts]:
    """Documents with assistant tokens as targets; rows without one are dropped and counted.

    overflow, for a row of more than max_length tokens: "truncate" cuts off its end; "split" makes several documents with the
    row's id; "drop" leaves it out. Rows are processed a few hundred at a time; documents take five bytes per token.
    Raises ModelError if the tokenizer has no chat template, the template refuses a row or rewrites its turns, or a row's token
    ids are outside this tokenizer's vocabulary.
    """
    if not tokenizer.is_fast:
        raise ModelError("the tokenizer has no tokenizer.json; convert it to the tokenizers format first")
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    counts: Counter[str] = Counter()
    documents = Documents.gather(_documents(rows, tokenizer, max_length, overflow, counts))
    return documents, TokenizeCounts(**counts, row_tokens=int(documents.lengths.sum()),
                                     target_tokens=int(documents.target_tokens.sum()))


def _documents(rows: Iterable[Row], tokenizer: PreTrainedTokenizerBase, max_length: int, overflow: Overflow,
               counts: Counter[str]) -> Iterator[Document]:
    """The documents of the rows; updates `counts`."""
    for row_id, input_ids, targets in _tokenized(rows, tokenizer):
        counts["rows"] += 1
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


def _tokenized(rows: Iterable[Row], tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(row id, tokens, mask of targets), processing a few hundred rows at a time."""
    rest = iter(rows)
    while part := list(islice(rest, ROWS_AT_ONCE)):
        texts, spans = [], []
        for row in part:
            if row.token_ids is not None:
                continue
            if row.text is None and not isinstance(tokenizer.chat_template, str):
                held = "several chat templates" if tokenizer.chat_template else "no chat template"
                raise ModelError(f"the tokenizer has {held}; put a chat_template.jinja into its directory")
            text, answered = (row.text, None) if row.text is not None else render_with_answers(row, tokenizer)
            texts.append(text)
            spans.append(answered)
        encoded = zip(_encode(texts, tokenizer), spans, strict=True)
        for row in part:
            yield row.row_id, *(_given(row, tokenizer) if row.token_ids is not None else _marked(*next(encoded)))


def _encode(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """Encodes texts with offsets that include white space. The post-processor is skipped, because one that trims offsets would
    give tokens of spaces an empty range."""
    backend = tokenizer.backend_tokenizer
    kept, backend.post_processor = backend.post_processor, None
    try:
        return backend.encode_batch(texts, add_special_tokens=False)
    finally:
        backend.post_processor = kept


def _marked(encoding: Any, answered: list[Span] | None) -> tuple[np.ndarray, np.ndarray]:
    """A text's tokens and the mask of targets: tokens inside the answers; all tokens if `answered` is None."""
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


def render(row: Row, tokenizer: PreTrainedTokenizerBase, add_generation_prompt: bool = False) -> str:
    """The row's text by the tokenizer's chat template. Raises ModelError with the row if the template refuses it."""
    return _render(row, row.messages, tokenizer, add_generation_prompt=add_generation_prompt)[0]


def render_with_answers(row: Row, tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[Span]]:
    """The row's text and the character ranges of the answers that are targets.

    Raises ModelError for an empty answer with weight 1, which would train the model to end at once, and for a weight other
    than 0 and 1."""
    for index, message in enumerate(row.messages):
        if message.get("role") != "assistant":
            continue
        if message.get("weight") not in (None, 0, 1):
            raise ModelError(f"row {row.row_id}: message {index} has a weight that is neither 0 (context) nor 1 (target)")
        if message.get("weight") != 0 and _says_nothing(message):
            raise ModelError(f"row {row.row_id}: message {index} is an empty assistant turn (no content, no tool call); leave "
                             'the row out, or give the message "weight": 0')
    assistants = [message for message in row.messages if message.get("role") == "assistant"]
    if GENERATION_MARK.search(tokenizer.chat_template):
        text, spans = _render(row, row.messages, tokenizer, marked=True)
    else:
        text, spans = _answers_by_prefix(row, tokenizer)
    learnt = [message.get("weight") != 0 for message in assistants]
    if len(spans) != len(assistants):
        if not all(learnt):
            raise ModelError(f"row {row.row_id}: the chat template marks {len(spans)} answers of {len(assistants)}, so "
                             "weight 0 cannot be told apart; mark every assistant message with {% generation %}")
        learnt = [True] * len(spans)
    return text, [_with_end_of_turn(text, span, tokenizer) for span, kept in zip(spans, learnt, strict=True) if kept]


def _says_nothing(message: dict[str, Any]) -> bool:
    spoken = (message.get(part) for part in ("content", "tool_calls", "function_call", "reasoning_content", "reasoning"))
    return not any(part.strip() if isinstance(part, str) else part for part in spoken)


def end_of_turn_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the special token that the template puts at the end of an answer, where generation must stop; [] if there is none,
    no template, or a template that refuses a single question and answer."""
    if not isinstance(tokenizer.chat_template, str):
        return []
    row = Row("probe", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    try:
        text, spans = render_with_answers(row, tokenizer)
    except ModelError:  # the template needs rows of another form, so its end of turn is unknown
        return []
    ids = tokenizer.encode(text[:spans[-1][1]], add_special_tokens=False) if spans else []
    return [ids[-1]] if ids and tokenizer.convert_ids_to_tokens(ids[-1]) in special_tokens(tokenizer) else []


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """All special tokens: those with a role (bos, eos, ...) and those only marked as special, such as <|eot_id|> in Llama 3's
    base models."""
    added = tokenizer.added_tokens_decoder.values()
    return list(dict.fromkeys([*tokenizer.all_special_tokens, *(token.content for token in added if token.special)]))


def _answers_by_prefix(row: Row, tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[Span]]:
    """Answers by rendering prefixes: an answer is the text that its message adds after the generation prompt. Valid only if the
    template does not rewrite earlier turns."""
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
    """Index after the last special token of the answer, or after its text if the template adds none."""
    ends = [place + len(token) for token in special_tokens(tokenizer) if (place := text.rfind(token, begin)) >= 0]
    return max(ends) if ends and not text[max(ends):].strip() else len(text.rstrip("\n"))


def _with_end_of_turn(text: str, span: Span, tokenizer: PreTrainedTokenizerBase) -> Span:
    """Extends an answer by its end-of-turn token, for templates that close the generation block before it."""
    begin, end = span
    specials = special_tokens(tokenizer)
    if not text[begin:end].endswith(tuple(specials)):
        for token in specials:
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
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(f"the chat template is not valid Jinja, line {error.lineno}: {error.message}") from error
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        said = str(error) if str(error) and str(error) in tokenizer.chat_template else type(error).__name__
        raise ModelError(f"row {row.row_id}: the chat template cannot render its messages ({said}); check their roles and "
                         "fields") from error  # a template's own error text quotes no row
    return rendered[0], [tuple(span) for span in spans[0]] if marked else []

