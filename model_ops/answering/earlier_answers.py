"""Answers that an earlier version of a drafter's dataset has of the same target, so that only new prompts are asked.

    earlier = EarlierAnswers.read(directory, target)            # directory None, or of another target: there are none
    earlier.reply(row_id, turn, prompt_ids, sampling)           # Reply, or None
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from model_ops.answering.completions_endpoint import Reply
from model_ops.answering.sampling_parameters import Sampling
from model_ops.models.target_digest import target_digest

COLUMNS = ["row_id", "turn", "origin", "prompt_token_ids", "answer_token_ids", "finish_reason", "sampling"]


@dataclass(frozen=True)
class EarlierAnswers:
    """By row and turn: the prompt's token ids, the sampling as JSON, and the reply."""

    _found: dict[tuple[str, int], tuple[list[int], str, Reply]] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path | None, target: Path) -> EarlierAnswers:
        """The generated answers of an output of `generate`, if they are of exactly these weights."""
        found: dict[tuple[str, int], tuple[list[int], str, Reply]] = {}
        for path in sorted(directory.glob("*.parquet")) if directory is not None else []:
            about = pq.read_schema(path).metadata or {}
            if about.get(b"target_digest", b"").decode() != target_digest(target):
                continue
            for row in pq.read_table(path, columns=COLUMNS).to_pylist():
                if row["origin"] == "generated":
                    reply = Reply(row["answer_token_ids"], row["finish_reason"])
                    found[row["row_id"], row["turn"]] = (row["prompt_token_ids"], row["sampling"], reply)
        return cls(found)

    def reply(self, row_id: str, turn: int, prompt: list[int], sampling: Sampling) -> Reply | None:
        """The earlier reply, if it was to the same tokens with the same sampling."""
        known = self._found.get((row_id, turn))
        return known[2] if known is not None and known[0] == list(prompt) and known[1] == sampling.as_json() else None
