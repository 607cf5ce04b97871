"""Token ids of logged answers, as the server that gave them counted them.

    served = ServedTokens.read(folder / "served.parquet")
    served.exact(turn, found, interaction_id, tokenizer)       # TurnTokens with the served ids, or None

Served ids beat rendering: they are what the model was given and what it said. They are used if the log's prompt is the one that
this tokenizer and this chat template give (the same ids, or ids of the same text), which proves that the server had both.
served.parquet is made by resources/composing/served_answers.py; its ids are null where personal data was replaced.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from model_ops.errors import ModelError
from model_ops.rendering.learnt_turns import LearntTurn
from model_ops.rendering.row import Row
from model_ops.rendering.tokens import TurnTokens

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

    def exact_of(self, row: Row, turn: LearntTurn, found: TurnTokens, tokenizer: PreTrainedTokenizerBase) -> TurnTokens | None:
        """The served tokens of a row's turn; see `exact`."""
        return self.exact(turn, found, row.interaction_of(turn.message), tokenizer)

    def exact(self, turn: LearntTurn, found: TurnTokens, interaction_id: str | None,
              tokenizer: PreTrainedTokenizerBase) -> TurnTokens | None:
        """The served tokens of a turn; None if there are none, or if its prompt was not rendered as here."""
        row = self.rows.get(interaction_id or "")
        if row is None or not row["completion_token_ids"]:
            return None
        prompt, answer = np.array(row["prompt_token_ids"], np.int32), np.array(row["completion_token_ids"], np.int32)
        if min(prompt.min(), answer.min()) < 0 or max(prompt.max(), answer.max()) >= len(tokenizer):
            return None
        if not np.array_equal(prompt, found.prompt) and tokenizer.decode(prompt) != turn.context:
            return None
        if row["finish_reason"] != "length" and answer[-1] != found.answer[-1]:
            answer = np.append(answer, found.answer[-1:])  # many servers leave the end of turn out
        return TurnTokens(prompt, answer.astype(np.int32))
