"""Answers that were paid for, in the lake by the hash of their request (model, messages, tools and sampling, not the address):
a later run asks for none again. The file is an AnswerLog, which machines join and an erasure reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_ops.answers import AnswerLog, Record
from resources.composing.dataset_schemas import SFT_ROWS
from resources.composing.teachers.settings import TeacherSettings


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
        return sum(self._log.notes.get(key, 0.0) for key in set(keys))


SENT = ("role", "content", "name", "tool_calls", "tool_call_id")
"""Keys of a message that the teacher sees."""


@dataclass(frozen=True)
class AnswerRequest:
    """A row's request: its body, and the name that its answer is kept under."""

    body: dict[str, Any]
    key: str


def answer_requests(
    row: dict[str, Any],
    settings: TeacherSettings,
    body_of: Callable[[list, Any, dict[str, Any]], dict[str, Any]],
    of_model: dict[str, Any] | None = None,
) -> list[AnswerRequest]:
    """The requests that a row's last answer answered, one for each answer; [] for a row without a conversation.
    body_of(messages, tools, extra): the request as it is sent. of_model: what else decides on the answer of a model in process.
    """
    messages = prompt_of(row)
    if messages is None:
        return []
    tools = json.loads(row["tools"]) if row["tools"] else None
    said = json.loads(row["request"]) if row["request"] else {}
    extra = {name: said[name] for name in ("response_format",) if said.get(name)}
    body, sampling = body_of(messages, tools, extra), {**settings.sampling, **extra, **(of_model or {})}
    return [
        AnswerRequest(body, request_key(settings.model or "", messages, tools, sampling, sample))
        for sample in range(settings.answers)
    ]


def with_answer(row: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    """The row with another last answer, the only one that is learnt, and which a model wrote."""
    before = [{**said, "weight": 0} if said["role"] == "assistant" else said for said in json.loads(row["messages"])[:-1]]
    messages = json.dumps([*before, {**message, "weight": 1}], ensure_ascii=False)
    digest = hashlib.sha256(f"{messages}\n{row['tools'] or ''}".encode("utf-8", "surrogatepass")).hexdigest()
    return {**row, "messages": messages, "content_sha256": digest, "quality": None, "difficulty": None, "synthetic": True}


def to_be_answered(row: dict[str, Any]) -> dict[str, Any]:
    """A row of rl_prompts as a conversation whose last answer is to be given."""
    messages = json.dumps([*json.loads(row["messages"]), {"role": "assistant", "content": ""}], ensure_ascii=False)
    return {**dict.fromkeys(SFT_ROWS.names), **row, "messages": messages}


def prompt_of(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    """What stands before a row's last answer, as an endpoint takes it; None if the row ends with no answer to learn."""
    messages = json.loads(row["messages"] or "[]")
    if len(messages) < 2 or messages[-1]["role"] != "assistant" or messages[-1].get("weight", 1) == 0:
        return None
    return [_sent(said) for said in messages[:-1]]


def _sent(message: dict[str, Any]) -> dict[str, Any]:
    sent = {name: message[name] for name in SENT if message.get(name) is not None}
    if "tool_calls" in sent:
        sent["tool_calls"] = [
            {
                **call,
                "type": "function",
                "function": {**call["function"], "arguments": _as_text(call["function"].get("arguments"))},
            }
            for call in sent["tool_calls"]
        ]
    return sent


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})
