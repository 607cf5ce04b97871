"""Answers that were paid for, in the lake by the hash of their request: a later run asks for none of them again.

A key names model, messages, tools and sampling, but not the address. The file is an AnswerLog, which machines join
(stores/mirror/paid_answers.py) and an erasure reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_ops.answers import AnswerLog, Record


@dataclass(frozen=True)
class StoredAnswer:
    """A reply that will not be asked for again."""

    model: str
    message: dict[str, Any] | None
    """The assistant's message; None with `failure`, why it cannot be used."""
    failure: str
    finish_reason: str
    prompt_tokens: int
    answer_tokens: int
    cost: float
    """Cost in the currency of the prices at that time."""
    logprobs: str | None = None
    """TokenLogs.packed; None without them."""

    @property
    def message_text(self) -> str:
        """The message as JSON, to compare answers; "" without one."""
        if self.message is None:
            return ""
        calls = [call["function"] for call in self.message.get("tool_calls") or []]
        return json.dumps({**self.message, "tool_calls": calls}, sort_keys=True)


def request_key(model: str, messages: list[dict[str, Any]], tools: Any, sampling: dict[str, Any], sample: int = 0) -> str:
    """Names a request by its content. sample: number of the answer, where a request is asked several times."""
    content = json.dumps([model, messages, tools, sampling, sample], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _cost_of(record: Record) -> float:
    """Raises ValueError for a record that is no answer."""
    try:
        return float(record["answer"]["cost"])
    except (KeyError, TypeError) as error:
        raise ValueError("the record has no cost") from error


class AnswerStore:
    """One file, for several threads and processes."""

    def __init__(self, path: Path):
        self._log = AnswerLog(path, note=_cost_of)

    def __enter__(self) -> AnswerStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def find(self, key: str) -> StoredAnswer | None:
        """The answer to a request; None if there is none yet."""
        record = self._log.find(key)
        return None if record is None else StoredAnswer(**record["answer"])

    def keep(self, key: str, answer: StoredAnswer) -> None:
        """Appends an answer and flushes it to the disk. The first answer to a request stays."""
        self.keep_all([(key, answer)])

    def keep_all(self, answers: Iterable[tuple[str, StoredAnswer]]) -> None:
        """Appends several answers to different requests, as `keep` does one."""
        now = datetime.now(UTC).isoformat()
        self._log.add_all({"key": key, "answer": asdict(answer), "asked_at": now} for key, answer in answers)

    def cost_of(self, keys: Iterable[str]) -> float:
        """What the answers to these requests have cost."""
        return sum(self._log.notes.get(key, 0.0) for key in set(keys))
