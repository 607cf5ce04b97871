"""Asks one server with the OpenAI API: the client of teachers, judges, graders, rollouts and drafters' data.

    with Endpoint(settings, "curation.judge", JudgeError) as endpoint:
        replies = list(endpoint.each(endpoint.chat, bodies))       # a ChatReply for each, `concurrency` at a time
        endpoint.content("GET", "/models")                         # bytes; raises JudgeError

A busy server, a broken connection and a reply that is no completion are tried again after growing pauses, or after the time in
Retry-After, which holds back all threads; a reply that does not end, which may be billed, only once. A refused key, model or
address ends the step. The key comes from the environment only."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import urllib3

from model_ops.completions.openai_api import MissingKeyError, OpenAiApi, key_in
from model_ops.completions.settings import EndpointSettings, PriceSettings
from model_ops.jobs import ModelError
from model_ops.machine import pause_after

NO_REPLY, BUSY = "no reply", "busy"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What every reply of a server says."""

    failure: str = ""
    """Kind of failure; "" for a reply that can be used."""
    reason: str = ""
    """Of NO_REPLY the name of the error, of BUSY the HTTP status."""
    retryable: bool = False
    """Whether another attempt may succeed."""

    @property
    def unreachable(self) -> bool:
        return self.failure in (NO_REPLY, BUSY)

    @property
    def why(self) -> str:
        """The failure for a message, such as `no reply: NewConnectionError` or `HTTP 503`."""
        return self.reason if self.failure == BUSY else ": ".join(filter(None, (self.failure, self.reason)))


@dataclass(frozen=True, kw_only=True)
class ChatReply(Reply):
    """The answer to one request for a chat completion."""

    message: dict[str, Any] | None = None
    """The assistant's message in the form of datasets; None where there is a failure."""
    text: str | None = None
    """Text of the message, also of one that was cut; None without a text."""
    finish_reason: str = ""
    prompt_tokens: int = 0
    answer_tokens: int = 0
    cost: float = 0.0
    """Of all attempts, in the currency of the prices."""
    choice: dict[str, Any] = field(default_factory=dict)
    """The choice as the server sent it, with its log-probabilities."""


def read_chat(content: bytes) -> ChatReply:
    """The completion in a reply's content."""
    try:
        reply = json.loads(content)
    except (ValueError, RecursionError):
        html = content.lstrip()[:200].lower().startswith((b"<!doctype", b"<html", b"<head", b"<?xml"))
        return ChatReply(failure="HTML instead of JSON" if html else "not JSON", retryable=True)
    usage = reply.get("usage") if isinstance(reply, dict) else None
    prompt_tokens, answer_tokens = (_count(usage, name) for name in ("prompt_tokens", "completion_tokens"))

    def failed(failure: str, finish_reason: str = "", text: str | None = None, retryable: bool = False) -> ChatReply:
        return ChatReply(
            failure=failure,
            retryable=retryable,
            text=text,
            finish_reason=finish_reason,
            prompt_tokens=prompt_tokens,
            answer_tokens=answer_tokens,
        )

    try:
        choice = reply["choices"][0]
        said, reason = choice["message"], str(choice.get("finish_reason") or "stop")
        text, calls = _text_of(said.get("content")), said.get("tool_calls") or []
    except (KeyError, IndexError, TypeError, AttributeError):
        return failed("no choices", retryable=not answer_tokens)
    if not (text is None or isinstance(text, str)) or not isinstance(calls, list) or not all(map(_is_call, calls)):
        return failed("no choices", reason, retryable=not answer_tokens)
    if reason == "length":
        return failed("cut by max_tokens", reason, text)
    if reason == "content_filter":
        return failed("filtered by the server", reason, text)
    if not (text or "").strip() and not calls:
        return failed("empty", reason, text)
    thoughts = next((said[name] for name in ("reasoning_content", "reasoning") if isinstance(said.get(name), str)), "")
    message: dict[str, Any] = {"role": "assistant", "content": text or ""}
    if thoughts.strip():
        message["reasoning_content"] = thoughts.strip()
    if calls:
        message["tool_calls"] = [
            {
                "id": call.get("id"),
                "type": "function",
                "function": {"name": call["function"]["name"], "arguments": call["function"].get("arguments") or "{}"},
            }
            for call in calls
        ]
    return ChatReply(
        message=message,
        text=text,
        finish_reason=reason,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        choice=choice,
    )


def _text_of(content: Any) -> Any:
    """The text of a message's content, which some servers give as a list of parts; anything else as it is."""
    parts = content if isinstance(content, list) else []
    if parts and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        return "".join(part["text"] for part in parts)
    return content


def _is_call(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(call.get("function"), dict) and isinstance(call["function"].get("name"), str)


def _count(usage: Any, name: str) -> int:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if type(count) is int and count >= 0 else 0


MILLION = 1_000_000


class RateLimiter:
    """Thread-safe. clock, sleep: seconds; tests give their own."""

    def __init__(
        self,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._per_request_s = 60 / requests_per_minute if requests_per_minute else 0.0
        self._per_token_s = 60 / tokens_per_minute if tokens_per_minute else 0.0
        self._clock, self._sleep, self._lock = clock, sleep, threading.Lock()
        self._next_request_s = self._next_tokens_s = self._held_until_s = float("-inf")

    def wait(self, tokens: int) -> None:
        """Blocks until a request of `tokens` may be sent, and counts it."""
        while True:
            with self._lock:
                now_s = self._clock()
                free_s = max(self._next_request_s, self._next_tokens_s, self._held_until_s)
                if free_s <= now_s:
                    self._next_request_s = now_s + self._per_request_s
                    self._next_tokens_s = now_s + tokens * self._per_token_s
                    return
            self._sleep(min(free_s - now_s, 1.0))  # a correction may bring the time forward

    def correct(self, tokens: int) -> None:
        """Counts more tokens than were announced, or fewer where negative."""
        with self._lock:
            self._next_tokens_s += tokens * self._per_token_s

    def hold(self, seconds: float) -> None:
        """Lets no request go before `seconds` from now."""
        with self._lock:
            self._held_until_s = max(self._held_until_s, self._clock() + seconds)


class BudgetError(Exception):
    """The next request could pass the limit, and no request is on its way that could leave more of it."""


class Bill:
    """The cost of one request."""

    def __init__(self, price: PriceSettings | None):
        self._price = price
        self.cost = 0.0

    def usage(self, prompt_tokens: int, answer_tokens: int) -> None:
        """Adds the tokens of a reply; a repeated request may have several."""
        if self._price is not None:
            self.cost += (prompt_tokens * self._price.input + answer_tokens * self._price.output) / MILLION


class Budget:
    """Thread-safe. spent: so far, in the prices' currency."""

    def __init__(self, price: PriceSettings | None = None, max_cost: float | None = None, spent: float = 0.0):
        self._price, self._most, self.spent = price, max_cost, spent
        self._reserved, self._free = 0.0, threading.Condition()

    @contextmanager
    def reserved(self, prompt_bytes: int, max_tokens: int) -> Iterator[Bill]:
        """Waits until the largest cost of a request fits. Raises BudgetError if it cannot."""
        largest = Bill(self._price)
        largest.usage(prompt_bytes, max_tokens)
        with self._free:
            while self._most is not None and self.spent + self._reserved + largest.cost > self._most:
                if not self._reserved:
                    raise BudgetError
                self._free.wait()
            self._reserved += largest.cost
        bill = Bill(self._price)
        try:
            yield bill
        finally:
            with self._free:
                self._reserved = max(0.0, self._reserved - largest.cost)
                self.spent += bill.cost
                self._free.notify_all()


RETRYABLE = (408, 425, 429, 500, 502, 503, 504)
"""Retryable HTTP statuses."""
REFUSED = (401, 403, 404, 405)
"""HTTP statuses that no other chat request to the server would change."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
MOST_OF_A_CHAT, MOST_OF_CONTENT, MOST_OF_AN_ERROR = 16 << 20, 64 << 20, 1 << 20
"""Bytes; a longer reply is not read. Content has token ids and their log-probabilities."""
ENDLESS = "the reply does not end"
BYTES_PER_TOKEN = 3
"""To foresee a prompt's tokens for the rate limit; the reply's usage corrects it."""

Asked = TypeVar("Asked")
Said = TypeVar("Said")


@dataclass(frozen=True, kw_only=True)
class ServerReply(Reply):
    """One HTTP reply. status: 0 without a reply."""

    status: int = 0
    content: bytes = b""
    pause_s: float | None = None
    """Retry-After, seconds."""


SILENT = ServerReply(failure=NO_REPLY, reason="not asked, since it had stopped answering", retryable=True)
Read = TypeVar("Read", bound=Reply)


class Endpoint:
    """One server; thread-safe. failed: failed attempts by kind, repeated ones included. without_usage: answers whose tokens
    the server did not count."""

    def __init__(
        self,
        settings: EndpointSettings,
        key: str,
        error: type[Exception] = ModelError,
        *,
        pace: RateLimiter | None = None,
        budget: Budget | None = None,
        through_proxy: bool = True,
        tail: str = "",
    ):
        """key: of the recipe, at the head of messages. error: raised for a server that cannot be used, or whose key
        is missing. tail: of its messages, such as what stays of the step."""
        self.settings, self.key, self.error, self.tail = settings, key, error, tail
        self.pace, self.budget = pace or RateLimiter(), budget or Budget()
        self.failed: Counter[str] = Counter()
        self.without_usage = 0
        self._silent, self._lock = 0, threading.Lock()
        try:
            api_key = key_in(settings.api_key_env)
        except MissingKeyError as missing:
            raise error(f"{key}: {missing}") from missing
        self._api = OpenAiApi(
            settings.base_url,
            api_key=api_key,
            connections=settings.concurrency,
            timeout_s=settings.timeout_s,
            through_proxy=through_proxy,
        )

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._api.close()

    @property
    def gone(self) -> bool:
        """Whether as many requests in a row failed, after all their attempts, as twice the requests at a time; then no more are
        sent."""
        return self._silent >= 2 * self.settings.concurrency

    def each(self, ask: Callable[[Asked], Said], asked: Iterable[Asked]) -> Iterator[Said]:
        """`ask` for each, several at a time, in order. After an error no other begins, and those on their way end first."""
        errors: list[BaseException] = []

        def guarded(one: Asked) -> Said:
            if errors:
                raise errors[0]
            try:
                return ask(one)
            except BaseException as error:
                errors.append(error)
                raise

        with ThreadPoolExecutor(self.settings.concurrency) as pool:
            try:
                yield from pool.map(guarded, asked)
            finally:
                pool.shutdown(cancel_futures=True)

    def chat(self, body: dict[str, Any]) -> ChatReply:
        """The answer to a chat request; `model` is filled in. The usage of every attempt counts. Raises `error` where the
        server refuses the key, the model or the address, and BudgetError as Budget does."""
        body = {**body, "model": self.settings.model}
        size, most = len(json.dumps(body)), int(body.get("max_tokens") or 0)
        expected = size // BYTES_PER_TOKEN + most
        with self.budget.reserved(size, most) as bill:

            def read(reply: ServerReply) -> ChatReply:
                if reply.status in REFUSED:
                    raise self.error(
                        f"{self.key}: {self.settings.base_url} refuses {self.settings.model} (HTTP {reply.status}): check "
                        f"base_url, model and api_key_env{self.tail}"
                    )
                if reply.failure == ENDLESS:
                    bill.usage(size, most)  # it may be billed whole
                if reply.failure:
                    return ChatReply(failure=reply.failure, retryable=reply.retryable, reason=reply.reason)
                return self._counted(read_chat(reply.content), bill, size, most, expected)

            reply = self._repeated("POST", "/chat/completions", body, read, expected, MOST_OF_A_CHAT)
            return replace(reply, cost=bill.cost)

    def content(self, method: str, path: str, body: dict[str, Any] | None = None, wants: str = "") -> bytes:
        """The content of a reply with HTTP 200; raises `error` for any other. wants: the remedy where the server refuses."""
        reply = self._repeated(method, path, body, lambda reply: reply, 0, MOST_OF_CONTENT)
        if reply.status not in (0, 200):
            where = self.settings.base_url + path.partition("?")[0]
            raise self.error(f"{self.key}: {where} refuses with HTTP {reply.status}{wants and ': '}{wants}")
        if reply.failure:
            raise self.error(
                f"{self.key}: {self.settings.base_url} does not reply ({reply.reason or reply.failure}): start the server and "
                f"run the step again{self.tail}"
            )
        return reply.content

    def _counted(self, reply: ChatReply, bill: Bill, size: int, most: int, expected: int) -> ChatReply:
        used = reply.prompt_tokens + reply.answer_tokens
        if used or reply.message is None:
            bill.usage(reply.prompt_tokens, reply.answer_tokens)
        else:  # no usage: the most that it can have been, since a token has at least one byte
            length = len(json.dumps(reply.message))
            bill.usage(size, min(most or length, length))
        self.pace.correct(used - expected if used else 0)
        if reply.message is not None and not reply.answer_tokens:
            with self._lock:
                self.without_usage += 1
        return reply

    def _repeated(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        read: Callable[[ServerReply], Read],
        tokens: int,
        most_bytes: int,
    ) -> Read:
        """The first reply that needs no other attempt, or the last one."""
        reply, endless = read(SILENT), 0
        for attempt in range(self.settings.retries + 1):
            if self.gone:
                return reply
            self.pace.wait(tokens)
            answer = self._attempt(method, path, body, most_bytes)
            reply = read(answer)
            with self._lock:
                if reply.failure:
                    self.failed[reply.failure] += 1
            endless += answer.failure == ENDLESS
            if not reply.retryable or endless > 1:
                break
            if attempt < self.settings.retries:
                pause_s = pause_after(attempt + 1, FIRST_PAUSE_S, LONGEST_PAUSE_S) * random.uniform(1, 1.5)
                pause_s = min(LONGEST_PAUSE_S, pause_s if answer.pause_s is None else answer.pause_s)
                if answer.status in RETRYABLE:
                    self.pace.hold(pause_s)  # whoever asks next would be refused as well
                else:
                    time.sleep(pause_s)
        with self._lock:
            self._silent = self._silent + 1 if reply.retryable else 0
        return reply

    def _attempt(self, method: str, path: str, body: dict[str, Any] | None, most_bytes: int) -> ServerReply:
        try:
            response = self._api.request(method, path, body, preload_content=False)
            content = self._api.read(
                response, most_bytes if response.status == 200 else MOST_OF_AN_ERROR, self.settings.timeout_s
            )
        except urllib3.exceptions.HTTPError as error:
            reason = type(getattr(error, "reason", None) or error).__name__
            return ServerReply(failure=NO_REPLY, reason=reason, retryable=True)
        status, named = response.status, f"HTTP {response.status}"
        if status in RETRYABLE:
            pause_s = retry_after(response.headers.get("Retry-After"))
            return ServerReply(failure=BUSY, reason=named, retryable=True, status=status, pause_s=pause_s)
        if status != 200:
            return ServerReply(failure=named, status=status)
        if content is None:
            return ServerReply(failure=ENDLESS, retryable=True, status=status)
        return ServerReply(status=status, content=content)


def retry_after(header: str | None) -> float | None:
    """Seconds of a Retry-After header, also of a fraction or a date; None for nonsense."""
    if header is None:
        return None
    with suppress(ValueError):
        seconds = float(header)
        return seconds if 0 <= seconds < 1e6 else None
    try:
        return urllib3.Retry().parse_retry_after(header)
    except (urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
        return None
