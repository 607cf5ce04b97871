"""Answers that need not be generated again: those of the logs, and those of an earlier version of a drafter's dataset.

Token ids count as the target's own if the log names the digest of its weights, or a model name that the recipe lists in
`served_as`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.completions.answerers import CompletionTokens
from model_ops.completions.sampling_parameters import Sampling, sampling_of, server_defaults
from model_ops.files import WeightNames, target_digest
from model_ops.jobs import ModelError

COLUMNS = (
    "interaction_id", "model", "served_model_digest", "params", "finish_reason", "prompt_token_ids", "completion_token_ids",
)  # fmt: skip


@dataclass(frozen=True)
class LoggedTokenIds:
    """Token ids of prompt and answer as logged by the server."""

    prompt: list[int]
    answer: list[int]
    finish_reason: str


class ServedAnswers:
    """Logged answers by interaction id; empty if there is no log."""

    def __init__(self, rows: dict[str, dict[str, Any]], target: Path, served_as: Sequence[str] = ()):
        self.rows, self.names, self.served_as = rows, WeightNames.of(target), frozenset(served_as)
        self.defaults = server_defaults(target)

    @classmethod
    def read(cls, path: Path, target: Path, served_as: Sequence[str] = ()) -> ServedAnswers:
        """Reads served.parquet. Raises ModelError if it lacks a column."""
        try:
            table = pq.read_table(path, columns=list(COLUMNS))
        except (OSError, pa.ArrowInvalid, pa.ArrowKeyError) as error:
            raise ModelError(f"{path} does not hold {', '.join(COLUMNS)}: materialize served_answers again") from error
        return cls({row["interaction_id"]: row for row in table.to_pylist()}, target, served_as)

    def sampling(self, interaction_id: str | None) -> Sampling:
        """The request's parameters; the server's defaults for missing ones and for an unknown request."""
        row = self.rows.get(interaction_id or "")
        return sampling_of(row["params"], self.defaults) if row else self.defaults

    def exact(self, interaction_id: str | None) -> LoggedTokenIds | None:
        """Token ids of an answer that this target generated; None for another model or an incomplete record."""
        row = self.rows.get(interaction_id or "")
        if row is None or not row["prompt_token_ids"] or not row["completion_token_ids"]:
            return None
        if not (self.names.has(row["served_model_digest"]) or row["model"] in self.served_as):
            return None
        reason = "stop" if row["finish_reason"] in ("stop", "tool_calls", "function_call") else "length"
        return LoggedTokenIds(row["prompt_token_ids"], row["completion_token_ids"], reason)


ANSWER_COLUMNS = ["row_id", "turn", "origin", "prompt_token_ids", "answer_token_ids", "finish_reason", "sampling"]


@dataclass(frozen=True)
class EarlierAnswers:
    """By row and turn: the prompt's token ids, the sampling as JSON, and the reply."""

    _replies: dict[tuple[str, int], tuple[list[int], str, CompletionTokens]] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path | None, target: Path) -> EarlierAnswers:
        """The generated answers of an output of `generate`, if they are of exactly these weights."""
        replies: dict[tuple[str, int], tuple[list[int], str, CompletionTokens]] = {}
        for path in sorted(directory.glob("*.parquet")) if directory is not None else []:
            about = pq.read_schema(path).metadata or {}
            if about.get(b"target_digest", b"").decode() != target_digest(target):
                continue
            for row in pq.read_table(path, columns=ANSWER_COLUMNS).to_pylist():
                if row["origin"] == "generated":
                    reply = CompletionTokens(row["answer_token_ids"], row["finish_reason"])
                    replies[row["row_id"], row["turn"]] = (row["prompt_token_ids"], row["sampling"], reply)
        return cls(replies)

    def reply(self, row_id: str, turn: int, prompt: list[int], sampling: Sampling) -> CompletionTokens | None:
        """The earlier reply, if it was to the same tokens with the same sampling."""
        known = self._replies.get((row_id, turn))
        return known[2] if known is not None and known[0] == list(prompt) and known[1] == sampling.as_json() else None
