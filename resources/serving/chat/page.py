"""The page of `millrace chat --page`: one or two speakers side by side, on this machine only.

One file without a network. It answers only requests that name this address as their Host, and that come from this page (Origin,
Sec-Fetch-Site): a web page elsewhere can neither read a conversation, by DNS rebinding, nor start one."""

import asyncio
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import web
from jinja2 import Template
from pydantic import ValidationError

from model_ops.files import write_text
from model_ops.jobs import CheckFailed
from resources.endpoints import Actor, ActorError
from resources.gateway import Front, FrontError, Handler, envelope, feedback_record
from resources.lake import LakeLayout
from resources.reading import chats_of
from resources.serving.chat.talking import ChatError, Question, Speaker, TalkError, Talking
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
    answer = {"id": exchange.id, "object": "chat.completion", "created": int(exchange.at), "choices": [choice], "usage": usage}
    answer["model"] = exchange.speaker.workload
    about = {"at": exchange.at, "request_id": exchange.id, "status": 200, "client": "millrace chat"}
    about |= {name: getattr(exchange.speaker, name) or None for name in ("release", "digest")}
    record = envelope(request, answer, about)  # no latency: it is not a server's
    said = {"id": exchange.id, "name": "thumbs", "value": value, "source": "millrace chat", "comment": comment or None}
    thumb = {"timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"), **feedback_record(json.dumps(said).encode())}
    day = datetime.fromtimestamp(exchange.at, UTC).date()
    path = chats_of(lake.root, exchange.speaker.workload) / f"dt={day}" / f"{exchange.id}.jsonl"
    write_text(path, f"{json.dumps(record)}\n{json.dumps(thumb)}\n")


PAGE = Path(__file__).with_name("templates") / "chat.html.j2"
HOSTS = ("127.0.0.1", "localhost")
HOST = HOSTS[0]
MOST_KEPT = 1_000
"""Answers that may still be rated."""
POLICY = (
    "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


class _Page:
    def __init__(self, lake: LakeLayout | None, talks: Sequence[Talking], system: str, sampling: Mapping[str, Any]):
        self.lake, self.talks, self.system, self.sampling = lake, talks, system, sampling
        self.busy = [threading.Lock() for _ in talks]
        self.exchanges: dict[str, ChatExchange] = {}
        self.port = 0
        """Of the front, once it serves."""

    @property
    def answers(self) -> dict[str, Handler]:
        places: dict[str, Handler] = {"GET /": self._page, "GET /about": self._about}
        places |= {"POST /chat": self._chat, "POST /stop": self._stop, "POST /feedback": self._feedback}
        return {place: self._guarded(handler) for place, handler in places.items()}

    def _guarded(self, handler: Handler) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            hosts = {f"{host}:{self.port}" for host in HOSTS}
            origin, origins = request.headers.get("Origin"), {f"http://{host}" for host in hosts}
            if (
                request.headers.get("Host") not in hosts
                or (origin or f"http://{HOST}:{self.port}") not in origins
                or request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
            ):
                return _refused(403, "this address answers only its own page")
            if request.method == "POST" and request.content_type != "application/json":
                return _refused(415, "the body is JSON")
            try:
                return await handler(request)
            except (ValidationError, ValueError, KeyError, TypeError, IndexError):  # not quoted: it holds what was said
                return _refused(400, "the request is not what the page sends: load it again")

        return answer

    async def _page(self, _: web.Request) -> web.StreamResponse:
        nonce = secrets.token_urlsafe(16)
        text = Template(PAGE.read_text(encoding="utf-8")).render(nonce=nonce)
        headers = {
            "Content-Security-Policy": POLICY.format(nonce=nonce),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        return web.Response(text=text, content_type="text/html", headers=headers)

    async def _about(self, _: web.Request) -> web.StreamResponse:
        speakers = [
            {
                "name": talk.speaker.name,
                **{name: getattr(talk, name) for name in ("temperature", "top_p", "positions")},
                "drafting": talk.speaker.drafting.label,
                "drafts": talk.speaker.drafting.method != "none",
                "not_kept": self._refusal_of(talk.speaker),
            }
            for talk in self.talks
        ]
        return web.json_response({"system": self.system, "sampling": dict(self.sampling), "speakers": speakers})

    def _refusal_of(self, speaker: Speaker) -> str:
        try:
            ratable_in(self.lake, speaker)
        except NotRatableError as error:
            return str(error)
        return ""

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        said = dict(await request.json())
        place = int(said.pop("speaker"))
        talk, busy = self.talks[place], self.busy[place]
        question = Question.model_validate({"temperature": talk.temperature, "top_p": talk.top_p, **said})
        if not busy.acquire(blocking=False):
            return _refused(409, "it answers another question: stop that one first")
        exchange = ChatExchange(talk.speaker, question)
        lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def read() -> None:
            try:
                talk.ask(question)
                while not exchange.done:
                    exchange.add(line := talk.line())
                    loop.call_soon_threadsafe(lines.put_nowait, line)
            except TalkError as error:
                loop.call_soon_threadsafe(lines.put_nowait, {"error": str(error)})
            finally:
                busy.release()
                loop.call_soon_threadsafe(lines.put_nowait, None)

        threading.Thread(target=read, daemon=True).start()
        self.exchanges[exchange.id] = exchange
        for oldest in list(self.exchanges)[:-MOST_KEPT]:
            del self.exchanges[oldest]
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        try:
            await response.prepare(request)
            await response.write(_line({"id": exchange.id}))
            while (line := await lines.get()) is not None:
                await response.write(_line(line))
            await response.write_eof()
        finally:
            if busy.locked() and not exchange.done:  # whoever asked has left
                talk.stop()
        return response

    async def _stop(self, request: web.Request) -> web.StreamResponse:
        self.talks[int((await request.json())["speaker"])].stop()
        return web.json_response({})

    async def _feedback(self, request: web.Request) -> web.StreamResponse:
        said = await request.json()
        exchange, value, comment = self.exchanges.get(said["id"]), said["value"], said.get("comment", "")
        if exchange is None or value not in ("up", "down") or not isinstance(comment, str):
            return _refused(400, "there is no such answer any more")
        try:
            lake = ratable_in(self.lake, exchange.speaker)
        except NotRatableError as error:
            return _refused(409, str(error))
        await asyncio.to_thread(keep_rating, lake, exchange, value, comment)
        return web.json_response({"kept": True})


def _line(said: dict[str, Any]) -> bytes:
    return (json.dumps(said) + "\n").encode()


def _refused(status: int, why: str) -> web.Response:
    return web.json_response({"error": why}, status=status)


@contextmanager
def chat_page(
    lake: LakeLayout | None, talks: Sequence[Talking], system: str, sampling: Mapping[str, Any], port: int = 0
) -> Iterator[Front]:
    """The page, for as long as the block runs; port 0: a free one. sampling: what the page begins with, instead of what the
    model is served with. Raises ChatError if the port is taken."""
    page = _Page(lake, talks, system, sampling)
    try:
        with Front(HOST, port, 0.0, answers=page.answers, passes=()) as front:
            page.port = front.port
            yield front
    except FrontError as error:
        raise ChatError(str(error)) from error
