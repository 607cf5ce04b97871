"""Preference rows as documents: a chosen and a rejected answer to one prompt, or a single answer with a verdict.

    preferences = read_preferences(dataset, "train", tokenizer, max_length=4_096, rows="both", shares=True)
    preferences.documents[0], preferences.verdicts[0]           # a Document with one branch, PAIR
    chosen, rejected = answer_masks(preferences.documents[0])

The prompt is what a server renders before the answer (model_ops.rendering), and an answer is what the model has to say after
it, its end of turn included. A pair is ONE document, so that its prompt is computed once: the trunk is prompt and chosen
answer, the branch is the rejected answer from the last token that both have in common. That token is copied, because its output
predicts the first different one. The beginning that both answers share is a target of both, in the trunk. So the last token of
each segment is the last of its answer: segment 0 is the chosen one, segment 1 the rejected one.

A third segment, with both answers as branches of the prompt, would cost attention over the prompt once more. Where documents
cannot continue each other (`shares` False) the branch is the whole rejected context and continues nothing (Branch.at is 0).

Left out and counted, by name: pairs whose answers are equal in tokens (equal_answers), whose prompts differ (other_prompt),
rows longer than max_length or than the model's positions (too_long), rows with an empty answer (no_answer), and rows that the
template refuses (unrenderable). An answer is never cut: its end would be one that nobody preferred."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Float, Int
from transformers import PreTrainedTokenizerBase

from model_ops.documents import Branch, Document, Documents, RefusedRows
from model_ops.jobs import ModelError
from model_ops.rendering import ROWS_AT_ONCE, Context, RenderedRow, RenderingSettings, Row, Split, rendered_rows
from model_ops.training import RowsOf

PAIR = -1
"""Verdict of a document that holds a chosen and a rejected answer."""
OPTIONAL = ("tools", "request", "ts", "weight", "confidence", "margin", "reason")


@dataclass(frozen=True)
class Preferences:
    """Preference rows of a split, one document each. Arrays have a value for each document."""

    documents: Documents
    verdicts: Int[np.ndarray, " documents"]
    """1: the answer is desirable. 0: it is not. PAIR: a chosen and a rejected answer."""
    weights: Float[np.ndarray, " documents"]
    confidence: Float[np.ndarray, " documents"]
    """How sure the source is of the verdict, in (0, 1]."""
    margins: Float[np.ndarray, " documents"]
    """Difference of grades, 0 to 1; nan where the source grades nothing."""
    reasons: list[str]
    """Source of each verdict, such as `edited`."""
    counts: dict[str, Any]


def read_preferences(
    dataset: Path,
    split: Split,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    rows: RowsOf,
    shares: bool,
    positions: int | None = None,
) -> Preferences:
    """The split's pairs, then its single answers. shares: whether the rejected answer continues the chosen one's prompt.
    positions: of the model, for each answer with its prompt. Raises ModelError if a file cannot be read, or if the template
    refuses more rows than the dataset's settings of rendering allow."""
    rendering, counts, refused = RenderingSettings.read(dataset), Counter[str](), RefusedRows()
    known: list[tuple[int, float, float, float, str]] = []

    def documents() -> Iterator[Document]:
        for record, rendered in _rendered(dataset, split, rows, tokenizer, rendering):
            contexts = _contexts(rendered, refused, counts)
            document = contexts and answers_document(record["row_id"], contexts, max_length, positions, shares, counts)
            if not document:
                continue
            weight, confidence = _number(record, "weight", 1.0), _number(record, "confidence", 1.0)
            if not (0 <= weight < math.inf and 0 < confidence <= 1):
                raise ModelError(
                    f"row {record['row_id']} has weight {weight:g} and confidence {confidence:g}: a weight is a number from 0, "
                    "a confidence is above 0 and at most 1; make the dataset again"
                )
            verdict = PAIR if len(contexts) == 2 else int(record["desirable"])
            known.append((verdict, weight, confidence, _number(record, "margin", math.nan), record.get("reason") or ""))
            yield document

    gathered = Documents.gather(documents())
    refused.check(counts["rows"], rendering.most_unrenderable)
    verdicts, weights, confidence, margins, reasons = zip(*known, strict=True) if known else ((),) * 5
    classes = np.array(verdicts, dtype=np.int64)
    return Preferences(
        gathered,
        classes,
        np.array(weights, dtype=np.float64),
        np.array(confidence, dtype=np.float64),
        np.array(margins, dtype=np.float64),
        list(reasons),
        {
            **{name: counts[name] for name in ("rows", "equal_answers", "other_prompt", "too_long", "no_answer")},
            "unrenderable_rows": refused.reasons.total(),
            "unrenderable": dict(refused.reasons.most_common()),
            "pairs": int((classes == PAIR).sum()),
            "desirable_answers": int((classes == 1).sum()),
            "undesirable_answers": int((classes == 0).sum()),
            "shared_tokens": sum(branch.at for of in gathered.branches.values() for branch in of),
            "row_tokens": int(gathered.lengths.sum()),
            "target_tokens": int(gathered.target_tokens.sum()),
        },
    )


def answer_masks(document: Document) -> list[Bool[np.ndarray, " tokens"]]:
    """The tokens of each answer: of a pair those of the chosen and of the rejected one, which have their common beginning, in
    the trunk, both; of a single answer its own."""
    if not document.branches:
        return [document.targets]
    [(at, length)] = document.branches
    trunk = len(document) - length
    chosen, rejected = document.targets.copy(), document.targets.copy()
    chosen[trunk:] = False
    rejected[at + 1 : trunk] = False
    return [chosen, rejected]


def _rendered(
    dataset: Path, split: Split, rows: RowsOf, tokenizer: PreTrainedTokenizerBase, rendering: RenderingSettings
) -> Iterator[tuple[dict[str, Any], tuple[RenderedRow, ...]]]:
    """(record, its rendered answers) of every row that is read."""
    kinds: dict[RowsOf, tuple[Path, tuple[str, ...], tuple[str, ...]]] = {
        "pairs": (dataset / f"{split}.parquet", ("chosen", "rejected"), ()),
        "unpaired": (dataset / f"unpaired_{split}.parquet", ("answer",), ("desirable",)),
    }
    asked = [kinds[rows]] if rows != "both" else [kind for kind in kinds.values() if kind[0].exists()] or [kinds["pairs"]]
    for path, sides, further in asked:
        for records in _records(path, ("row_id", "prompt", *sides, *further)):
            given = rendered_rows((_row(record, side, path) for record in records for side in sides), tokenizer, rendering)
            yield from zip(records, zip(*[iter(given)] * len(sides), strict=True), strict=True)


def _records(path: Path, needed: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    """The file's rows, a few hundred at a time. Raises ModelError if it cannot be read or lacks a column."""
    if not path.exists():
        raise ModelError(f"there is no {path.name} in {path.parent}: give the directory of a preference dataset with such rows")
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if missing := [name for name in needed if name not in names]:
                raise ModelError(f"{path} has no column {missing[0]}; its columns are {', '.join(names)}")
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=[*needed, *(name for name in OPTIONAL if name in names)]):
                yield batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ModelError(
            f"{path} cannot be read as Parquet ({' '.join(str(error).split())}): make the dataset again"
        ) from error


def _row(record: dict[str, Any], side: str, path: Path) -> Row:
    """The conversation of prompt and answer, in which only the answer is learnt."""
    try:
        prompt, answer = json.loads(record["prompt"]), json.loads(record[side])
        tools, request = (json.loads(record[name]) if record.get(name) else None for name in ("tools", "request"))
        return Row(
            record["row_id"],
            [*({**message, "weight": 0} for message in prompt), {**answer[0], "weight": 1}],
            tools,
            request=request,
            ts=record.get("ts"),
        )
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ModelError(
            f"{path}: prompt, tools, request or {side} of row {record['row_id']} are not JSON text of messages"
        ) from error


def _contexts(rendered: Sequence[RenderedRow], refused: RefusedRows, counts: Counter[str]) -> list[Context]:
    """Token ids and targets of each answer with its prompt; [] if one cannot be rendered."""
    counts["rows"] += 1
    for side in rendered:
        if side.refusal is not None:
            refused.add(side.row, side.refusal)
            return []
    contexts = [side.contexts[0] for side in rendered if side.contexts and side.contexts[0][1][1:].any()]
    if len(contexts) < len(rendered):
        counts["no_answer"] += 1
        return []
    return contexts


def answers_document(
    row_id: str, contexts: Sequence[Context], max_length: int, positions: int | None, shares: bool, counts: Counter[str]
) -> Document | None:
    """The document of one or two answers; None if it is left out, which is counted."""
    ids, targets = contexts[0]
    branches: tuple[Branch, ...] = ()
    longest = max(len(each) for each, _ in contexts)
    if len(contexts) == 2:
        other, of_other = contexts[1]
        shorter = min(len(ids), len(other))
        different = np.flatnonzero(ids[:shorter] != other[:shorter])
        common = int(different[0]) if len(different) else shorter
        prompts = {int(np.argmax(mask)) for _, mask in contexts}
        if len(prompts) > 1 or common < max(prompts):
            counts["other_prompt"] += 1
            return None
        if common == len(ids) == len(other):
            counts["equal_answers"] += 1
            return None
        at = common - 1 if shares else 0
        branches = (Branch(at, len(other) - at),)
        rest = of_other[at:].copy()
        rest[0] = False
        ids, targets = np.concatenate([ids, other[at:]]), np.concatenate([targets, rest])
    if len(ids) > max_length or (positions is not None and longest > positions):
        counts["too_long"] += 1
        return None
    return Document(row_id, ids, targets, branches=branches)


def _number(record: dict[str, Any], name: str, default: float) -> float:
    value = record.get(name)
    return default if value is None else float(value)
