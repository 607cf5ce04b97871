"""Conversations as two models read them: each with its own tokenizer and chat template, the answers aligned.

    paired = read_paired(dataset, "train", student_tokenizer, teacher_tokenizer, settings, teacher_context)
    paired.documents             # of the student, with the answers' tokens as targets
    paired.of_teacher            # documents of the teacher
    paired.groups[0]             # of the student's document 0: [groups, 5], with the index of the teacher's document third
    groups = aligned(student_ids, teacher_ids, student_bytes, teacher_bytes)
    groups                       # [groups, 4]: first and last token of the student's, first and last of the teacher's

A template that rewrites earlier turns gives each answer a context of its own; the two models may differ in that, too.

A group is tokens of both that stand for the same bytes; it ends where a token of both ends at the same byte. Special tokens are
matched one to one, in order, whatever their names. Where the texts differ (a tool call that two templates write in different
ways), the bytes before are aligned, and the end of turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

import numpy as np
from jaxtyping import Int
from transformers import PreTrainedTokenizerBase

from model_ops.documents import Document, RefusedRows
from model_ops.jobs import ModelError
from model_ops.rendering import (
    ROWS_AT_ONCE,
    ChatTemplate,
    Context,
    LearntTurn,
    RenderingSettings,
    Row,
    Split,
    TokenBytes,
    TurnEncoder,
    TurnTokens,
    Unrenderable,
    iterate_rows,
    joined_with_places,
    learnt_turns,
)


@dataclass(frozen=True)
class PairedDocuments:
    """Answers as documents of the student and of the teacher."""

    documents: list[Document]
    of_teacher: list[Document]
    groups: list[Int[np.ndarray, "_ 5"]]
    """For each document of the student [groups, 5]: its first and last token, the teacher's document, and that document's
    first and last token."""
    counts: dict[str, int]
    """Counts of rows, of targets, and of targets in a group."""


def read_paired(
    dataset: Path,
    split: Split,
    student: PreTrainedTokenizerBase,
    teacher: PreTrainedTokenizerBase,
    max_length: int,
    drop_long: bool = False,
    teacher_context: int | None = None,
) -> PairedDocuments:
    """The rows of a split that both templates can render.

    max_length: of the student's documents; longer ones are cut, or left out with `drop_long`. teacher_context: to which the
    teacher's documents are cut. A group with a token that was cut is left out; its tokens of the student remain targets.
    Raises ModelError for pre-tokenized rows, if the templates refuse too many rows, and if no answer can be aligned.
    """
    rendering, refused, counts = RenderingSettings.read(dataset), RefusedRows(), Counter[str]()
    documents, of_teacher, groups = [], [], []
    for row, ours, theirs, spans in _rows(dataset, split, (student, teacher), rendering, refused, counts):
        first = len(of_teacher)
        for ids, _ in theirs:
            of_teacher.append(Document(row.row_id, ids[:teacher_context], np.zeros(len(ids[:teacher_context]), dtype=bool)))
        for index, (ids, targets) in enumerate(ours):
            counts["contexts"] += 1
            counts["cut_rows"] += len(ids) > max_length
            if len(ids) > max_length and drop_long:
                continue
            document = Document(row.row_id, ids[:max_length], targets[:max_length])
            if not document.target_tokens:
                continue
            mine = [
                [a, b, first + their, c, d]
                for our, their, found in spans
                if our == index
                for a, b, c, d in found
                if a > 0 and c > 0 and b < len(document) and d < len(of_teacher[first + their])
            ]
            documents.append(document)
            groups.append(np.array(mine, dtype=np.int32).reshape(-1, 5))
            counts["target_tokens"] += document.target_tokens
            counts["aligned_tokens"] += sum(int(b - a) + 1 for a, b, *_ in mine)
    refused.check(counts["rows"], rendering.most_unrenderable)
    if split == "train" and not counts["aligned_tokens"]:
        raise ModelError(
            "no answer of the dataset can be aligned between the tokenizers of student and teacher; check roles, "
            "weights, max_length and both chat templates"
        )
    return PairedDocuments(documents, of_teacher, groups, dict(counts))


Spans = list[tuple[int, int, Int[np.ndarray, "_ 4"]]]
"""(context of the student, context of the teacher, groups as places in those contexts) of each answer."""


def _rows(
    dataset: Path,
    split: Split,
    tokenizers: Sequence[PreTrainedTokenizerBase],
    rendering: RenderingSettings,
    refused: RefusedRows,
    counts: Counter[str],
) -> Iterator[tuple[Row, list[Context], list[Context], Spans]]:
    """Both models' contexts of every row that both render."""
    encoders = [TurnEncoder(tokenizer) for tokenizer in tokenizers]
    spelt = [TokenBytes.of(tokenizer) for tokenizer in tokenizers]
    rest = iter(iterate_rows(dataset, split))
    while part := list(islice(rest, ROWS_AT_ONCE)):
        kept: list[tuple[Row, list[list[LearntTurn]]]] = []
        for row in part:
            counts["rows"] += 1
            if row.token_ids is not None:
                raise ModelError(
                    f"row {row.row_id} holds token ids, which belong to one tokenizer, and student and teacher "
                    "have different ones: give its text or messages instead"
                )
            try:
                kept.append(
                    (
                        row,
                        [
                            learnt_turns(row, ChatTemplate.of(tokenizer), rendering.thinking) if row.messages else []
                            for tokenizer in tokenizers
                        ],
                    )
                )
            except Unrenderable as error:
                refused.add(row, error)
        both = [encoder.turns([turns[which] for _, turns in kept]) for which, encoder in enumerate(encoders)]
        for (row, _), ours, theirs in zip(kept, *both, strict=True):
            if row.text is not None:
                nothing = np.zeros(0, np.int64)
                ours, theirs = ([TurnTokens(nothing, encoder.texts([row.text])[0])] for encoder in encoders)
            yield row, *_aligned_turns(ours, theirs, spelt)


def _aligned_turns(
    ours: Sequence[TurnTokens], theirs: Sequence[TurnTokens], spelt: Sequence[TokenBytes]
) -> tuple[list[Context], list[Context], Spans]:
    (our_contexts, our_places), (their_contexts, their_places) = joined_with_places(ours), joined_with_places(theirs)
    spans = []
    for mine, other, (our, our_start), (their, their_start) in zip(ours, theirs, our_places, their_places, strict=True):
        groups = aligned(mine.answer.tolist(), other.answer.tolist(), *spelt)
        spans.append((our, their, groups + np.array([our_start, our_start, their_start, their_start], np.int32)))
    return our_contexts, their_contexts, spans


Groups = Int[np.ndarray, "groups 4"]


def aligned(student_ids: Sequence[int], teacher_ids: Sequence[int], student: TokenBytes, teacher: TokenBytes) -> Groups:
    """The groups in order. Tokens between which no group closes are in none."""
    ours, theirs = _segments(student_ids, student), _segments(teacher_ids, teacher)
    found: list[Groups] = []
    whole = len(ours) == len(theirs)
    for (our_first, our_texts), (their_first, their_texts) in zip(ours, theirs, strict=False):
        if (our_texts is None) != (their_texts is None):
            whole = False
            break
        if our_texts is None:
            found.append(np.array([[our_first, our_first, their_first, their_first]]))
            continue
        groups, whole_text = _aligned_text(our_texts, their_texts)
        found.append(groups + np.array([our_first, our_first, their_first, their_first]))
        if not whole_text:
            whole = False
            break
    if not whole and ours and theirs and ours[-1][1] is None and theirs[-1][1] is None:
        last = np.array([[ours[-1][0], ours[-1][0], theirs[-1][0], theirs[-1][0]]])
        if not found or not len(found[-1]) or (found[-1][-1, 1] < last[0, 1] and found[-1][-1, 3] < last[0, 3]):
            found.append(last)
    return np.concatenate([np.zeros((0, 4), np.int64), *found]).astype(np.int32)


def _segments(ids: Sequence[int], vocabulary: TokenBytes) -> list[tuple[int, list[bytes] | None]]:
    """(first token, bytes of its tokens) of each run of text; (token, None) of each special token."""
    found: list[tuple[int, list[bytes] | None]] = []
    for is_special, run in groupby(enumerate(ids), key=lambda item: int(item[1]) in vocabulary.special):
        tokens = list(run)
        if is_special:
            found += [(place, None) for place, _ in tokens]
        else:
            found.append((tokens[0][0], [vocabulary.bytes.get(int(token), b"") for _, token in tokens]))
    return found


def _aligned_text(ours: list[bytes], theirs: list[bytes]) -> tuple[Groups, bool]:
    """(groups of the bytes that both begin with, whether that is all of both)."""
    our_text, their_text = b"".join(ours), b"".join(theirs)
    if our_text[:1] == b" " and their_text and our_text[1:2] == their_text[:1] != b" ":  # SentencePiece's space before a text
        ours, our_text = [ours[0][1:], *ours[1:]], our_text[1:]
    elif their_text[:1] == b" " and our_text and their_text[1:2] == our_text[:1] != b" ":
        theirs, their_text = [theirs[0][1:], *theirs[1:]], their_text[1:]
    shared = _shared_bytes(our_text, their_text)
    our_ends, their_ends = (np.cumsum([len(token) for token in tokens]) for tokens in (ours, theirs))
    ends = np.intersect1d(our_ends, their_ends)
    ends = ends[(ends <= shared) & (ends > 0)]
    our_last, their_last = (np.searchsorted(own, ends, side="right") - 1 for own in (our_ends, their_ends))
    groups = np.stack(
        [
            np.concatenate([[0], our_last[:-1] + 1])[: len(ends)],
            our_last,
            np.concatenate([[0], their_last[:-1] + 1])[: len(ends)],
            their_last,
        ],
        axis=1,
    )
    return groups, our_text == their_text


def _shared_bytes(one: bytes, other: bytes) -> int:
    """Number of bytes that two texts begin with in common."""
    length = min(len(one), len(other))
    different = np.flatnonzero(np.frombuffer(one[:length], np.uint8) != np.frombuffer(other[:length], np.uint8))
    return int(different[0]) if len(different) else length
