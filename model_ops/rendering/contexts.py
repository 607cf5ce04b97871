"""Rows as contexts: token ids with a mask of what is learnt.

    for rendered in rendered_rows(rows, tokenizer, RenderingSettings()):
        rendered.contexts                   # [(input_ids, targets), ...]; [] with a `refusal` or with nothing to learn

A row has one context if the chat template keeps earlier turns as they were, else one for each different context. The row may
also be a plain text, which is learnt whole, or token ids with labels."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from transformers import PreTrainedTokenizerBase

from model_ops.jobs import ModelError
from model_ops.rendering.chat_template import ChatTemplate, Unrenderable
from model_ops.rendering.endpoint_tokens import EndpointTokens
from model_ops.rendering.row import ROWS_AT_ONCE, RenderingSettings, Row
from model_ops.rendering.server_messages import LEARNT_CUT, MARKS, says_nothing, without_reasoning
from model_ops.rendering.tokens import Context, Ids, ServedTokens, TurnEncoder, TurnTokens, joined
from model_ops.rendering.turns import LearntTurn, learnt_turns
from model_ops.tensors import IGNORED


@dataclass
class ReasoningBudget:
    """Closes reasoning after `tokens` tokens; counts answers with reasoning, closed ones, and the longest's tokens."""

    tokens: int
    reasoning_answers: int = 0
    closed_answers: int = 0
    longest_reasoning: int = 0

    def closed(self, row: Row, turn: LearntTurn, tokens: TurnTokens, encoder: TurnEncoder) -> TurnTokens:
        """The turn with its reasoning closed if it is longer than the budget; else the turn with nothing to learn."""
        nothing, answer = replace(tokens, learnt=np.zeros(len(tokens.answer), dtype=bool)), tokens.answer
        marks = _marks(turn, ChatTemplate.of(encoder.tokenizer))
        if marks is None:
            return nothing
        begin, space, end = marks
        start, stop = _through(begin, answer, encoder) if begin else 0, _through(end, answer, encoder)
        length = stop - start - len(_within_text(space + end, encoder))
        self.reasoning_answers += 1
        self.longest_reasoning = max(self.longest_reasoning, length)
        if length <= self.tokens:
            return nothing
        self.closed_answers += 1
        thought = answer[: start + self.tokens]
        while encoder.tokenizer.decode(thought[-4:]).endswith("\ufffd"):  # never within the bytes of a character
            thought = thought[:-1]
        last_token = encoder.tokenizer.decode(answer[start:stop]).partition(end)[2]  # may hold more than the mark
        mark = _within_text(space + end + last_token, encoder)
        message = row.messages[turn.message]
        is_answered = not says_nothing(without_reasoning(message))
        whole = np.concatenate([thought, mark, answer[stop:] if is_answered else mark[:0]])
        learnt = np.arange(len(whole)) >= len(thought)
        learnt[len(thought) + len(mark) :] = False
        learnt[-1] |= is_answered and not message.get(LEARNT_CUT)
        return TurnTokens(tokens.prompt, whole, learnt)

    def check(self, rows: int, template: ChatTemplate) -> None:
        """Raises ModelError if no reasoning of the rows was longer than the budget."""
        if self.reasoning_answers and not self.closed_answers:
            raise ModelError(
                f"reasoning_budget is {self.tokens}, and the longest reasoning of {self.reasoning_answers} answers has "
                f"{self.longest_reasoning} tokens, so there is nothing to close: set it below {self.longest_reasoning}, add "
                "rows with longer reasoning, or leave it out"
            )
        if not self.reasoning_answers:
            marked = "a model whose chat template has marks such as <think>"
            raise ModelError(
                f"reasoning_budget needs reasoning, and none of {rows} training rows has an answer with any, as the model's "
                f"chat template writes it: take {'rows with reasoning' if template.reasoning_block else marked}, or leave "
                "reasoning_budget out"
            )


def unfinished_reasoning(row: Row) -> Row:
    """The row in a form that is rendered where the token limit ended an answer within its reasoning."""
    messages = [
        {**message, LEARNT_CUT: None} if says_nothing(without_reasoning(message)) else message for message in row.messages
    ]
    return replace(row, messages=messages)


def _marks(turn: LearntTurn, template: ChatTemplate) -> tuple[str, str, str] | None:
    """Of an answer's reasoning: its beginning mark ("" if the prompt has it), the white space before its closing mark, and that
    mark; None without reasoning."""
    written = template.reasoning_block or ("", "")
    for begin, end in (*MARKS, (written[0].strip(), written[1].strip())):
        is_open = turn.context.rstrip().endswith(begin)
        if end and end in turn.answer and (is_open or turn.answer.lstrip().startswith(begin)):
            before = turn.answer.partition(end)[0]
            return "" if is_open else begin, before[len(before.rstrip()) :], end
    return None


def _through(text: str, ids: Ids, encoder: TurnEncoder) -> int:
    """Number of first tokens up to the end of a text; all, if they lack it (served ids that the token limit ended)."""
    tokenizer = encoder.tokenizer
    token = tokenizer.convert_tokens_to_ids(text)
    if token is not None and tokenizer.convert_ids_to_tokens(token) == text:
        return int(np.argmax(ids == token)) + 1 if (ids == token).any() else len(ids)
    return bisect_left(range(len(ids)), True, key=lambda count: text in tokenizer.decode(ids[:count]))


def _within_text(text: str, encoder: TurnEncoder) -> Ids:
    """Tokens of a text that follows others: some tokenizers write a space before the first word."""
    return np.array(encoder.prompt("a" + text)[len(encoder.prompt("a")) :], dtype=np.int32)


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
    or no tokenizer.json, or if a row's token ids are outside its vocabulary."""
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
