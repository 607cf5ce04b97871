"""Turns of logged conversations for the target to answer again, each with the history that a server would receive.

The history of a later turn holds the target's own answers; a logged one stays if it calls a tool, if curation dropped it
(weight 0), or if the target's answer was cut short."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from model_ops.jobs import ModelError
from model_ops.rendering import ChatTemplate, Row, Split, TurnEncoder, read_rows, request_of, server_messages
from model_ops.tensors import IGNORED

START_OF_THOUGHT, END_OF_THOUGHT = "<think>", "</think>"

LABELS = ("session_id", "prompt_shape", "workload", "interaction_ids")


@dataclass
class Dialogue:
    """One row of a dataset."""

    row: Row
    session_id: str
    prompt_shape: str
    workload: str
    turns: list[int]
    """Indices of the messages that the target answers; a row of token ids has one."""
    interaction_ids: list[str | None]
    """Logged interaction of the answer of each turn; None if unknown."""
    given_ids: list[int] | None = None
    """The prompt of a row that is stored as token ids."""
    _own: dict[int, str] = field(default_factory=dict)

    @property
    def row_id(self) -> str:
        return self.row.row_id

    def prompt_ids(self, turn: int, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Token ids before the answer of a turn (an index into `turns`). Raises Unrenderable if the chat template refuses the
        messages, and ModelError without a template."""
        if self.given_ids is not None:
            return self.given_ids
        place = self.turns[turn]
        messages = [
            _said(message, self._own[at]) if at in self._own else message
            for at, message in enumerate(self.row.messages[:place])
        ]
        asked = request_of(self.row, place) if place < len(self.row.messages) else self.row.request
        row = replace(self.row, messages=messages, request=asked)
        return TurnEncoder(tokenizer).prompt(ChatTemplate.of(tokenizer).prompt(row, place))

    def answered(self, turn: int, text: str) -> None:
        """Replaces the logged answer in later histories by the target's, except in the cases of the module's docstring."""
        place = self.turns[turn]
        if (
            place < len(self.row.messages)
            and not self.row.messages[place].get("tool_calls")
            and not self.row.messages[place].get("function_call")
        ):
            self._own[place] = text

    def first_turns(self, count: int) -> Dialogue:
        """The same conversation with only its first `count` turns to answer."""
        return replace(self, turns=self.turns[:count], interaction_ids=self.interaction_ids[:count], _own={})


def read_conversations(dataset: Path, split: Split, tokenizer: PreTrainedTokenizerBase) -> list[Dialogue]:
    """The conversations of a split with a turn to answer, in the file's order. Turns are assistant messages with a message
    before them and a weight above 0, and the end of a conversation that has no answer yet. The turn of a row of token ids
    begins at the first id with a loss. Raises ModelError as `conversations.read_rows` does."""
    rows = read_rows(dataset, split)
    path = dataset / f"{split}.parquet"
    present = [name for name in LABELS if name in pq.read_schema(path).names]
    labels = pq.read_table(path, columns=present).to_pylist() if present else [{}] * len(rows)
    dialogues = []
    for row, label in zip(rows, labels, strict=True):
        given, turns = _given(row, tokenizer), []
        if given is None:
            turns = [
                place
                for place, message in enumerate(row.messages)
                if place > 0 and message.get("role") == "assistant" and message.get("weight", 1) != 0
            ]
            if row.messages and row.messages[-1].get("role") in ("user", "tool"):
                turns.append(len(row.messages))
        elif given:
            turns = [0]
        if turns:
            ids = list(label.get("interaction_ids") or [])
            learnt = sum(message.get("role") == "assistant" and message.get("weight", 1) != 0 for message in row.messages)
            # ids belong to the answers with a loss, in order, then to copies; any other number of ids cannot be assigned
            known: list[str | None] = ids[learnt - len(turns) : learnt] if ids and len(ids) >= learnt >= len(turns) else []
            dialogues.append(
                Dialogue(
                    row,
                    str(label.get("session_id") or row.row_id),
                    str(label.get("prompt_shape") or ""),
                    str(label.get("workload") or ""),
                    turns,
                    known or [None] * len(turns),
                    given,
                )
            )
    return dialogues


def choose_conversations(conversations: Sequence[Dialogue], limit: int | None, seed: int) -> list[Dialogue]:
    """A sample of conversations with at most `limit` turns in total, drawn by a hash: most of it stays when others come. The
    last conversation is cut to its first turns if all of them would exceed the limit."""
    if limit is None or sum(len(each.turns) for each in conversations) <= limit:
        return list(conversations)
    order = sorted(conversations, key=lambda each: hashlib.sha256(f"{seed}/{each.row_id}".encode()).digest())
    chosen: list[Dialogue] = []
    for each in order:
        if limit > 0:
            chosen.append(each.first_turns(limit))
            limit -= len(chosen[-1].turns)
    return chosen


def _said(message: dict[str, Any], text: str) -> dict[str, Any]:
    """The logged message with the target's text; reasoning goes into its own key if the log has one."""
    beside = [name for name in server_messages.THOUGHTS if message.get(name)]
    thought, mark, answer = text.rpartition(END_OF_THOUGHT)
    if not beside:
        return {**message, "content": text}
    if not mark:  # the answer has no reasoning
        return {**{name: value for name, value in message.items() if name not in server_messages.THOUGHTS}, "content": text}
    thought = thought.removeprefix(START_OF_THOUGHT).strip("\n")
    return {**message, **dict.fromkeys(beside, thought), "content": answer.lstrip("\n")}


def _given(row: Row, tokenizer: PreTrainedTokenizerBase) -> list[int] | None:
    """The prompt of a row of token ids: the ids before the first one with a loss. None for a conversation."""
    if row.token_ids is None:
        return None if row.text is None else []
    strange = [token for token in row.token_ids if not 0 <= token < len(tokenizer)]
    if strange:
        raise ModelError(
            f"row {row.row_id}: token id {strange[0]} is outside the tokenizer's vocabulary of "
            f"{len(tokenizer)}; make pre-tokenized rows with the target's tokenizer"
        )
    labels = row.labels if row.labels is not None else row.token_ids
    first = next((place for place, label in enumerate(labels) if label != IGNORED), 0)
    return list(row.token_ids[:first])
