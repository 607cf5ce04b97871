"""Rows as contexts: token ids with a mask of what is learnt.

    for rendered in rendered_rows(rows, tokenizer, RenderingSettings()):
        rendered.contexts                   # [(input_ids, targets), ...]; [] with a `refusal` or with nothing to learn

A row has one context if the chat template keeps earlier turns as they were, else one for each different context. The row may
also be a plain text, which is learnt whole, or token ids with labels.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from transformers import PreTrainedTokenizerBase

from model_ops.jobs import ModelError
from model_ops.rendering.chat_template import ChatTemplate, Unrenderable
from model_ops.rendering.endpoint_tokens import EndpointTokens
from model_ops.rendering.reasoning_budget import ReasoningBudget, unfinished_reasoning
from model_ops.rendering.row import ROWS_AT_ONCE, Row
from model_ops.rendering.settings import RenderingSettings
from model_ops.rendering.tokens import Context, ServedTokens, TurnEncoder, TurnTokens, joined
from model_ops.rendering.turns import LearntTurn, learnt_turns
from model_ops.tensors import IGNORED


@dataclass(frozen=True)
class RenderedRow:
    """A row with its contexts."""

    row: Row
    contexts: list[Context]
    refusal: Unrenderable | None = None
    """Reason why the row cannot be taught."""
    served_answers: int = 0
    """Answers with the token ids of the log."""


def rendered_rows(
    rows: Iterable[Row],
    tokenizer: PreTrainedTokenizerBase,
    rendering: RenderingSettings,
    served: ServedTokens | EndpointTokens | None = None,
    budget: ReasoningBudget | None = None,
) -> Iterator[RenderedRow]:
    """The contexts of every row, in order, processing a few hundred rows at a time.

    served: token ids from the log or a teacher's endpoint, which are learnt instead of rendered ones. budget: of answers with
    longer reasoning only its end is learnt, and nothing of other rows. Raises ModelError if the tokenizer has no chat template
    or no tokenizer.json, or if a row's token ids are outside its vocabulary.
    """
    encoder, rest = TurnEncoder(tokenizer), iter(rows)
    served = served if rendering.thinking == "keep" else None  # served ids hold the reasoning
    while part := list(islice(rest, ROWS_AT_ONCE)):
        part = part if budget is None else [unfinished_reasoning(row) for row in part]
        turns = [_turns(row, tokenizer, rendering) for row in part]
        tokens = encoder.turns([[] if isinstance(of_row, Unrenderable) else of_row for of_row in turns])
        texts = iter(encoder.texts([row.text for row in part if row.token_ids is None and row.text is not None]))
        for row, of_row, rendered in zip(part, turns, tokens, strict=True):
            if isinstance(of_row, Unrenderable):
                yield RenderedRow(row, [], of_row)
            elif row.token_ids is not None:
                yield RenderedRow(row, [_given(row, tokenizer)] if budget is None else [])
            elif row.text is not None:
                input_ids = next(texts)
                yield RenderedRow(row, [(input_ids, np.full(len(input_ids), budget is None))])
            else:
                exact = [_exact(row, turn, of_turn, tokenizer, served) for turn, of_turn in zip(of_row, rendered, strict=True)]
                used = [exact_turn or of_turn for exact_turn, of_turn in zip(exact, rendered, strict=True)]
                if budget is not None:
                    used = [budget.closed(row, turn, tokens, encoder) for turn, tokens in zip(of_row, used, strict=True)]
                yield RenderedRow(row, joined(used), served_answers=sum(each is not None for each in exact))


def _turns(row: Row, tokenizer: PreTrainedTokenizerBase, rendering: RenderingSettings) -> list[LearntTurn] | Unrenderable:
    try:
        return learnt_turns(row, ChatTemplate.of(tokenizer), rendering.thinking) if row.messages else []
    except Unrenderable as error:
        return error


def _exact(
    row: Row,
    turn: LearntTurn,
    rendered: TurnTokens,
    tokenizer: PreTrainedTokenizerBase,
    served: ServedTokens | EndpointTokens | None,
) -> TurnTokens | None:
    return None if served is None else served.exact_of(row, turn, rendered, tokenizer)


def _given(row: Row, tokenizer: PreTrainedTokenizerBase) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and targets of a pre-tokenized row. Raises ModelError if an id is outside this tokenizer's vocabulary."""
    input_ids = _integers(row, "token_ids", row.token_ids or [])
    strange = input_ids[(input_ids < 0) | (input_ids >= len(tokenizer))]
    if len(strange):
        raise ModelError(
            f"row {row.row_id}: token id {strange[0]} is outside the tokenizer's vocabulary of {len(tokenizer)}; "
            "make pre-tokenized rows with the tokenizer of the model that is trained"
        )
    labels = input_ids if row.labels is None else _integers(row, "labels", row.labels)
    if len(labels) != len(input_ids):
        raise ModelError(f"row {row.row_id}: {len(input_ids)} token ids, but {len(labels)} labels; give one label for each id")
    other = np.flatnonzero((labels != input_ids) & (labels != IGNORED))
    if len(other):
        raise ModelError(
            f"row {row.row_id}: label {labels[other[0]]} at position {other[0]} is neither that position's token "
            f"({input_ids[other[0]]}) nor {IGNORED}; give labels that are not shifted"
        )
    return input_ids.astype(np.int32), labels != IGNORED


def _integers(row: Row, name: str, values: list[int]) -> np.ndarray:
    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"row {row.row_id}: {name} holds a value that is not an integer") from error
