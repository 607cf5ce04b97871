"""Token ids of learnt turns, as a server sees its prompt and as the model has to answer.

    turns = TurnEncoder(tokenizer).turns([turns_of_row_1, turns_of_row_2])      # for each row its turns: prompt and answer ids
    joined(turns[0])                                             # contexts: [(input_ids, targets), ...]
    end_of_turn_ids(tokenizer)                                   # [151645]: where the chat template ends the model's turns

A server tokenizes a prompt by itself, and the model answers with tokens of its own, so prompt and answer are tokenized apart: a
token never spans both. Turns share a context if the text of the next prompt begins with the text before it. Text between
special tokens is tokenized by itself, so only what is new since the last special token is tokenized again.

Ids of the log (served.parquet, made by resources/composing/served_answers.py) beat rendering, if the log's prompt is the one
that this tokenizer and chat template give, which proves that the server had both. They are null where personal data was
replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Int
from transformers import PreTrainedTokenizerBase

from model_ops.jobs import ModelError
from model_ops.rendering.chat_template import ChatTemplate, Unrenderable, special_tokens
from model_ops.rendering.row import Row
from model_ops.rendering.turns import LearntTurn, learnt_turns

Ids = Int[np.ndarray, " tokens"]
Context = tuple[Ids, Bool[np.ndarray, " tokens"]]
TAIL_TOKENS = 64
"""The last special token of a prompt is looked for among this many tokens at its end."""


@dataclass(frozen=True)
class TurnTokens:
    """Tokens of a server's prompt and of the answer. learnt: which tokens of the answer are learnt; None for all."""

    prompt: Ids
    answer: Ids
    learnt: Bool[np.ndarray, " tokens"] | None = None


class TurnEncoder:
    """Tokenizes texts of one tokenizer. Raises ModelError for a tokenizer without tokenizer.json."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        if not tokenizer.is_fast:
            raise ModelError("the tokenizer has no tokenizer.json; convert it to the tokenizers format first")
        self.tokenizer, self.backend = tokenizer, tokenizer.backend_tokenizer
        self.backend.no_truncation()
        self.backend.no_padding()
        self.added = np.array(sorted(tokenizer.added_tokens_decoder), dtype=np.int64)
        self.specials = tuple(special_tokens(tokenizer))
        self._tails: dict[str, Ids] = {}

    def texts(self, texts: Sequence[str]) -> list[Ids]:
        """Tokens of plain texts, with the tokens that the tokenizer's own rule puts at their beginning and end."""
        return [_ids(encoding) for encoding in self.backend.encode_batch(list(texts), add_special_tokens=True)]

    def turns(self, rows: Sequence[Sequence[LearntTurn]]) -> list[list[TurnTokens]]:
        """Tokens of each turn of each row."""
        flat = [(turn, begin) for row in rows for turn, begin in zip(row, self._begins(row), strict=True)]
        new = self._encode([turn.context[begin:] for turn, begin in flat])
        tails = [
            turn.context[begin + self._last_special(encoding) :] for (turn, begin), encoding in zip(flat, new, strict=True)
        ]
        answers = iter(
            zip(
                self._tail_ids(tails),
                self._encode([tail + turn.answer for tail, (turn, _) in zip(tails, flat, strict=True)]),
                strict=True,
            )
        )
        parts = iter(zip(flat, new, strict=True))
        return [self._of_row(len(row), parts, answers) for row in rows]

    def prompt(self, text: str) -> list[int]:
        """Tokens of a server's prompt."""
        return self._encode([text])[0].ids

    def after(self, mark: str, text: str) -> list[int]:
        """Tokens of a text that follows a special token, of whose words some tokenizers write a space before the first one."""
        return self._encode([mark + text])[0].ids[1:]

    def _of_row(
        self, count: int, parts: Iterator[tuple[tuple[LearntTurn, int], Any]], answers: Iterator[tuple[Ids, Any]]
    ) -> list[TurnTokens]:
        of_turns: list[TurnTokens] = []
        for _ in range(count):
            ((turn, begin), new), (tail, whole) = next(parts), next(answers)
            before = [of_turns[-1].prompt, of_turns[-1].answer[:-1]] if begin else []
            of_turns.append(TurnTokens(np.concatenate([*before, _ids(new)]), self._answer(turn, tail, _ids(whole))))
        return of_turns

    def _begins(self, row: Sequence[LearntTurn]) -> list[int]:
        """For each turn the first character of its prompt that has to be tokenized: the special token that ends the turn
        before, if the prompt continues that turn's text."""
        begins = [0] if row else []
        for before, turn in pairwise(row):
            said = before.context + before.answer
            end = max((len(token) for token in self.specials if before.answer.endswith(token)), default=0)
            begins.append(len(said) - end if end and turn.context.startswith(said) else 0)
        return begins

    def _answer(self, turn: LearntTurn, tail: Ids, whole: Ids) -> Ids:
        """Tokens of an answer. tail: tokens of the prompt from its last special token on. whole: tokens of that text with the
        answer."""
        if len(whole) >= len(tail) and np.array_equal(whole[: len(tail)], tail):
            return whole[len(tail) :]
        mark = self.specials[0] if self.specials else ""
        for anchor in (mark, mark + "\n"):  # some tokenizers write a space before the first word after a special token
            alone, with_answer = (_ids(encoding) for encoding in self._encode([anchor, anchor + turn.answer]))
            rest = with_answer[len(alone) :]
            if np.array_equal(with_answer[: len(alone)], alone) and self.tokenizer.decode(
                [*tail, *rest]
            ) == self.tokenizer.decode(whole):
                break
        return rest

    def _last_special(self, encoding: Any) -> int:
        """Index of the first character of the last special token; 0 if there is none."""
        ids = np.array(encoding.ids[-TAIL_TOKENS:], dtype=np.int64)
        places = np.flatnonzero(np.isin(ids, self.added))
        return encoding.offsets[len(encoding.ids) - len(ids) + int(places[-1])][0] if len(places) else 0

    def _tail_ids(self, tails: Sequence[str]) -> list[Ids]:
        new = sorted(set(tails) - self._tails.keys())
        for tail, encoding in zip(new, self._encode(new), strict=True):
            self._tails[tail] = _ids(encoding)
        ids = [self._tails[tail] for tail in tails]
        if len(self._tails) > 10_000:
            self._tails.clear()
        return ids

    def _encode(self, texts: Sequence[str]) -> list[Any]:
        """Encodes texts without special tokens at their ends."""
        processor, self.backend.post_processor = self.backend.post_processor, None
        try:
            return self.backend.encode_batch(list(texts), add_special_tokens=False)
        finally:
            self.backend.post_processor = processor


def joined(turns: Sequence[TurnTokens]) -> list[Context]:
    """Turns as contexts: a turn whose prompt begins with exactly the tokens before it continues their context."""
    contexts: list[Context] = []
    for turn in turns:
        ids = np.concatenate([turn.prompt, turn.answer]).astype(np.int32)
        targets = np.zeros(len(ids), dtype=bool)
        targets[len(turn.prompt) :] = True if turn.learnt is None else turn.learnt
        if contexts:
            before, learnt = contexts[-1]
            if len(before) <= len(turn.prompt) and np.array_equal(before, turn.prompt[: len(before)]):
                targets[: len(before)] = learnt
                contexts.pop()
        contexts.append((ids, targets))
    return contexts


def _ids(encoding: Any) -> Ids:
    return np.array(encoding.ids, dtype=np.int32)


TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}}
]
ENDED = ({"role": "assistant", "content": "b"}, {"role": "assistant", "content": "",
    "tool_calls": [{"id": "call12345", "type": "function", "function": {"name": "look", "arguments": "{}"}}]})  # fmt: skip
"""Answers whose ends of turn are looked for."""


def end_of_turn_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the special tokens that end answers and tool calls, where generation must stop; [] if there is none, no template,
    or a template that refuses a single question and answer."""
    if not tokenizer.chat_template:
        return []
    template, encoder, ends = ChatTemplate.of(tokenizer), TurnEncoder(tokenizer), []
    for answer in ENDED:
        row = Row("probe", [{"role": "user", "content": "a"}, answer], TOOLS if "tool_calls" in answer else None)
        try:
            ends += [int(turn.answer[-1]) for turn in encoder.turns([learnt_turns(row, template)])[0] if len(turn.answer)]
        except Unrenderable:  # the template needs rows of another form, so its end of turn is unknown
            continue
    return [token for token in dict.fromkeys(ends) if tokenizer.convert_ids_to_tokens(token) in encoder.specials]


COLUMNS = ("interaction_id", "finish_reason", "prompt_token_ids", "completion_token_ids")


class ServedTokens:
    """Served ids by interaction id; empty without a log."""

    def __init__(self, rows: dict[str, dict[str, Any]]):
        self.rows = rows

    @classmethod
    def read(cls, path: Path) -> ServedTokens:
        """Reads served.parquet. Raises ModelError if it lacks a column."""
        try:
            table = pq.read_table(path, columns=list(COLUMNS))
        except (OSError, pa.ArrowInvalid, pa.ArrowKeyError) as error:
            raise ModelError(f"{path} does not hold {', '.join(COLUMNS)}: materialize served_answers again") from error
        held = table.filter(pa.compute.is_valid(table["completion_token_ids"]))
        return cls({row["interaction_id"]: row for row in held.to_pylist() if row["prompt_token_ids"]})

    def exact_of(self, row: Row, turn: LearntTurn, tokens: TurnTokens, tokenizer: PreTrainedTokenizerBase) -> TurnTokens | None:
        """The served tokens of a row's turn; see `exact`."""
        return self.exact(turn, tokens, row.interaction_of(turn.message), tokenizer)

    def exact(
        self, turn: LearntTurn, tokens: TurnTokens, interaction_id: str | None, tokenizer: PreTrainedTokenizerBase
    ) -> TurnTokens | None:
        """The served tokens of a turn; None if there are none, or if its prompt was not rendered as here."""
        row = self.rows.get(interaction_id or "")
        if row is None or not row["completion_token_ids"]:
            return None
        prompt, answer = np.array(row["prompt_token_ids"], np.int32), np.array(row["completion_token_ids"], np.int32)
        if min(prompt.min(), answer.min()) < 0 or max(prompt.max(), answer.max()) >= len(tokenizer):
            return None
        if not np.array_equal(prompt, tokens.prompt) and tokenizer.decode(prompt) != turn.context:
            return None
        if row["finish_reason"] != "length" and answer[-1] != tokens.answer[-1]:
            answer = np.append(answer, tokens.answer[-1:])  # many servers leave the end of turn out
        return TurnTokens(prompt, answer.astype(np.int32))
