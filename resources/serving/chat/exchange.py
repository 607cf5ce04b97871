"""What people think of an answer in `millrace chat`, kept in the lake as log objects, which the next run reads
(resources/reading).

An object has the exchange and the feedback on it, as `millrace capture` would write them. Answers that nobody rates are not
kept.
"""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from model_ops.files import write_text
from model_ops.jobs import CheckFailed
from resources.endpoints import Actor, ActorError
from resources.gateway import envelope, feedback_record
from resources.lake import LakeLayout
from resources.reading import chats_of
from resources.serving.chat.speaker import Speaker
from resources.serving.chat.talking import Question
from stores.mirror.no_mirror import NoMirror

FINISHED = {"length": "length", "stopped": "cancelled"}
"""finish_reason by how an answer ended; one that a person stopped is not whole."""


class NotRatableError(CheckFailed):
    """Feedback on an answer would reach no run; the message says why."""


@dataclass
class ChatExchange:
    """A question and what was answered so far."""

    speaker: Speaker
    question: Question
    id: str = field(default_factory=lambda: f"chat-{uuid4().hex}")
    at: float = field(default_factory=time.time)
    text: str = ""
    done: dict[str, Any] = field(default_factory=dict)
    """The last line of the answer."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Takes a line of the answer."""
        self.text += "".join(text for text, _ in line.get("pieces", ())) + line.get("rest", "")
        if "pieces" not in line:
            self.done = dict(line)


def ratable_in(lake: LakeLayout | None, speaker: Speaker) -> LakeLayout:
    """The lake that keeps feedback on a speaker's answers. Raises NotRatableError where none does, with the reason."""
    if lake is None or not speaker.workload:
        raise NotRatableError(
            f"{speaker.name} belongs to no workload of a lake, so no run would read what you think of its answers"
        )
    if not isinstance(lake.mirror, NoMirror):
        raise NotRatableError("the lake lies in a bucket, and feedback of a chat is kept in lakes on a disk only")
    return lake


def keep_rating(lake: LakeLayout, exchange: ChatExchange, value: str, comment: str = "") -> None:
    """Writes the exchange with a thumb: the conversation up to the answer, without messages that the model did not see. A later
    thumb on the same answer replaces it."""
    question, done, meta = exchange.question, exchange.done, {}
    with suppress(ActorError):
        meta["user"] = Actor.of_command("").name
    lead = int(question.messages[0].role == "system")
    seen = [*question.messages[:lead], *question.messages[lead + done.get("dropped", 0) :]]
    question = question.model_copy(update={"messages": seen})
    request = {"model": exchange.speaker.workload, **question.model_dump(exclude={"draft"}), **meta}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": exchange.text},
        "finish_reason": FINISHED.get(str(done.get("done")), "stop"),
    }
    usage = {"prompt_tokens": done.get("prompt_tokens"), "completion_tokens": done.get("tokens")}
    answer = {
        "id": exchange.id,
        "object": "chat.completion",
        "created": int(exchange.at),
        "model": exchange.speaker.workload,
        "choices": [choice],
        "usage": usage,
    }
    record = envelope(
        request,
        answer,
        {
            "at": exchange.at,
            "request_id": exchange.id,
            "status": 200,
            "release": exchange.speaker.release or None,
            "digest": exchange.speaker.digest or None,
            "client": "millrace chat",
        },
    )  # no latency: it is not a server's
    said = {"id": exchange.id, "name": "thumbs", "value": value, "source": "millrace chat", "comment": comment or None}
    thumb = {"timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"), **feedback_record(json.dumps(said).encode())}
    day = datetime.fromtimestamp(exchange.at, UTC).date()
    path = chats_of(lake.root, exchange.speaker.workload) / f"dt={day}" / f"{exchange.id}.jsonl"
    write_text(path, f"{json.dumps(record)}\n{json.dumps(thumb)}\n")
