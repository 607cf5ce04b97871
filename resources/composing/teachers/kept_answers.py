"""Answers that were paid for, kept in the lake by the hash of their request: a later run asks for none of them again.

    with AnswerStore(lake.root / "answers" / "tutor.jsonl") as kept:
        kept.find(key)                      # StoredAnswer or None
        kept.keep(key, answer)              # on the disk when this returns

key = request_key(...): sha256 over model, messages, tools and sampling, but not the address. The file only grows, a JSON line
for each answer. A line that a killed process left unfinished is ignored and ended by the next writer; memory holds the place of
each answer, not its text. The file may be replaced while it is open (stores/mirror/paid_answers.py joins the answers of other
machines): whoever replaces it holds its lock, and a writer opens it again.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_ops.files import is_at, lock, unlock


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
        return (
            ""
            if self.message is None
            else json.dumps(
                {**self.message, "tool_calls": [call["function"] for call in self.message.get("tool_calls") or []]},
                sort_keys=True,
            )
        )


def request_key(model: str, messages: list[dict[str, Any]], tools: Any, sampling: dict[str, Any], sample: int = 0) -> str:
    """Names a request by its content. sample: number of the answer, where a request is asked several times."""
    content = json.dumps([model, messages, tools, sampling, sample], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


class AnswerStore:
    """One file, for several threads and processes."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._lock = path, threading.Lock()
        self._open()
        with self._alone():
            self._read_new()

    def __enter__(self) -> AnswerStore:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def find(self, key: str) -> StoredAnswer | None:
        """The answer to a request; None if there is none yet."""
        with self._lock:
            if key not in self._places:
                return None
            line = self._line_at(self._places[key])
        return StoredAnswer(**json.loads(line)["answer"])

    def keep(self, key: str, answer: StoredAnswer) -> None:
        """Appends an answer and flushes it to the disk. The first answer to a request stays."""
        self.keep_all([(key, answer)])

    def keep_all(self, answers: Iterable[tuple[str, StoredAnswer]]) -> None:
        """Appends several answers to different requests, as `keep` does one."""
        now = datetime.now(UTC).isoformat()
        lines = {
            key: json.dumps({"key": key, "answer": asdict(answer), "asked_at": now}).encode() + b"\n" for key, answer in answers
        }
        with self._lock, self._alone():
            self._read_new()
            new = b"".join(line for key, line in lines.items() if key not in self._places)
            if new:
                os.write(self._file, new)
                os.fsync(self._file)
                self._read_new()

    def cost_of(self, keys: Iterable[str]) -> float:
        """What the answers to these requests have cost."""
        return sum(self._costs.get(key, 0.0) for key in set(keys))

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._places: dict[str, int] = {}
        self._costs: dict[str, float] = {}
        self._seen = 0

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds the file's kernel lock, which a killed process loses."""
        while True:
            lock(self._file)
            if is_at(self._file, self._path):
                break
            os.close(self._file)
            self._open()
        try:
            yield
        finally:
            unlock(self._file)

    def _read_new(self) -> None:
        """Notes the lines that this or another process appended, and ends a line that a killed one left unfinished."""
        end = os.fstat(self._file).st_size
        with os.fdopen(os.dup(self._file), "rb") as lines:
            lines.seek(self._seen)
            for line in lines:
                if not line.endswith(b"\n"):
                    os.write(self._file, b"\n")
                    end += 1
                    break
                try:
                    noted = json.loads(line)
                    self._places.setdefault(noted["key"], self._seen)
                    self._costs.setdefault(noted["key"], noted["answer"]["cost"])
                except (ValueError, KeyError, TypeError):
                    pass  # what a killed process left
                self._seen += len(line)
        self._seen = end

    def _line_at(self, place: int) -> bytes:
        with os.fdopen(os.dup(self._file), "rb") as lines:
            lines.seek(place)
            return lines.readline()
