"""Asks a chat model behind an OpenAI-compatible endpoint, within limits of pace and cost, and says what became of each request.

    with TeacherEndpoint(settings) as endpoint:
        reply = endpoint.ask(endpoint.body(messages, tools, extra), bill)    # TeacherReply(message, failure, ...)
    pace = RateLimiter(requests_per_minute=60, tokens_per_minute=90_000)     # for several threads
    pace.wait(tokens=2_100)          # returns when a request of at most so many tokens may be sent
    pace.correct(tokens=-1_500)      # it took fewer
    pace.hold(seconds=20)            # Retry-After: nobody sends before
    budget = Budget(price, max_cost=5.0, spent=1.20)
    with budget.reserved(prompt_bytes=900, max_tokens=2_048) as bill:      # BudgetError if it could pass the limit
        bill.usage(prompt_tokens=310, answer_tokens=650)                   # what it was

A busy server, a broken connection and a reply that is no chat completion are tried again after growing pauses or the time in
Retry-After, which holds back all threads. Keys, addresses and models that are refused end the stage (TeacherError).

A request of t tokens moves the time of the next one by the larger of 60 / requests_per_minute and 60 t / tokens_per_minute, so
no minute holds more than the limits and the one request that began before it. Before a request its largest cost is reserved: a
token is at least one byte, so a prompt has at most as many tokens as its request has bytes. Reservations of requests on their
way count as spent, so no order of replies passes the limit.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import urllib3

from model_ops.answering import AGAIN, LONGEST_PAUSE_S, MissingKeyError, OpenAiApi
from model_ops.jobs import CheckFailed
from model_ops.machine import pause_after
from resources.composing.teachers.settings import PriceSettings, TeacherSettings
from resources.composing.teachers.token_logs import TokenLogs, read_token_logs

MOST_BYTES = 16 << 20
"""A longer reply is not read."""
BYTES_PER_TOKEN = 3
"""To foresee a prompt's tokens for the rate limit; the reply's usage corrects it."""
FIRST_PAUSE_S = 0.5
REFUSED = (401, 403, 404, 405)
ASKED_AGAIN = ("no reply", "busy", "not JSON", "HTML instead of JSON", "no choices", "the reply is too long")
"""Failures that another attempt may mend."""


class TeacherError(CheckFailed):
    """The teacher cannot be used, or its answers cost too much; the message says what was kept, and the remedy."""


@dataclass(frozen=True)
class TeacherReply:
    message: dict[str, Any] | None
    """The assistant's message in the dataset's form, or None; then `failure` says why."""
    failure: str = ""
    finish_reason: str = ""
    prompt_tokens: int = 0
    answer_tokens: int = 0
    logprobs: TokenLogs | None = None

    @property
    def mendable(self) -> bool:
        """Whether another attempt could succeed and this one cost nothing, so that nothing is kept of it."""
        return self.failure in ASKED_AGAIN and not self.answer_tokens


class TeacherEndpoint:
    """One teacher; thread-safe. failed: failed attempts by kind, those that were repeated included."""

    def __init__(self, settings: TeacherSettings, pace: RateLimiter | None = None):
        self.settings = settings
        self.failed: Counter[str] = Counter()
        self.without_usage = 0
        self._pace = pace or RateLimiter(settings.requests_per_minute, settings.tokens_per_minute)
        self._lock, self._in_a_row = threading.Lock(), 0
        try:
            self._api = OpenAiApi.of(settings.model_copy(update={"retries": None}))
        except MissingKeyError as error:
            raise TeacherError(f"teacher: {error}") from error

    def __enter__(self) -> TeacherEndpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._api.close()

    @property
    def gone(self) -> bool:
        """Whether as many requests in a row failed, after all their attempts, as twice the requests at a time."""
        return self._in_a_row >= 2 * self.settings.concurrency

    def body(self, messages: list[dict[str, Any]], tools: Any, extra: dict[str, Any]) -> dict[str, Any]:
        """The request as it is sent."""
        asked = {**self.settings.sampling, **extra, "model": self.settings.model, "messages": messages}
        return {**asked, "tools": tools} if tools else asked

    def ask(self, body: dict[str, Any], bill: Bill) -> TeacherReply:
        """The answer to one request; every attempt's usage goes on the bill. Raises TeacherError where the server refuses the
        key, the model or the address."""
        size = len(json.dumps(body))
        expected = size // BYTES_PER_TOKEN + self.settings.max_tokens
        reply = TeacherReply(None, "no reply")
        for attempt in range(self.settings.retries + 1):
            if self.gone:
                break
            self._pace.wait(expected)
            reply, pause_s = self._attempt(body)
            used = reply.prompt_tokens + reply.answer_tokens
            if used or reply.message is None:
                bill.usage(reply.prompt_tokens, reply.answer_tokens)
            else:  # no usage: the most that it can have been, since a token has at least one byte
                bill.usage(size, min(self.settings.max_tokens, len(json.dumps(reply.message))))
            self._pace.correct(used - expected if used else 0)
            if reply.failure:
                with self._lock:
                    self.failed[reply.failure] += 1
            if not reply.mendable:
                break
            if attempt < self.settings.retries:
                grown = pause_after(attempt + 1, FIRST_PAUSE_S, LONGEST_PAUSE_S) * random.uniform(1, 1.5)
                seconds = min(LONGEST_PAUSE_S, grown if pause_s is None else pause_s)
                if reply.failure == "busy":
                    self._pace.hold(seconds)  # whoever asks next would be refused as well
                else:
                    time.sleep(seconds)
        with self._lock:
            self._in_a_row = self._in_a_row + 1 if reply.mendable else 0
        return reply

    def _attempt(self, body: dict[str, Any]) -> tuple[TeacherReply, float | None]:
        """One reply, and the seconds that the server asks to wait."""
        try:
            response = self._api.request("POST", "/chat/completions", body, preload_content=False)
            content = self._api.read(response, MOST_BYTES, self.settings.timeout_s)
        except urllib3.exceptions.HTTPError:
            return TeacherReply(None, "no reply"), None
        if response.status in REFUSED:
            raise TeacherError(
                f"teacher: {self.settings.base_url} refuses {self.settings.model} (HTTP {response.status}): "
                "check base_url, model and api_key_env; answers up to now are kept"
            )
        if response.status in AGAIN:
            return TeacherReply(None, "busy"), _seconds(response.headers.get("Retry-After"))
        if response.status != 200:
            return TeacherReply(None, f"HTTP {response.status}"), None
        if content is None:
            return TeacherReply(None, "the reply is too long"), None
        found = read_reply(content, self.settings.logprobs)
        if self.settings.logprobs and found.message and not found.logprobs and not found.message.get("tool_calls"):
            raise TeacherError(
                f"teacher: {self.settings.base_url} gave an answer without log-probabilities: serve the model "
                "where logprobs and top_logprobs are supported (vLLM: --max-logprobs of at least "
                f"{self.settings.logprobs}), or leave teacher.logprobs out to learn its text"
            )
        if found.message is not None and not found.answer_tokens:
            with self._lock:
                self.without_usage += 1
        return found, None


def read_reply(content: bytes, logprobs: int | None = None) -> TeacherReply:
    """The answer in a chat completion, or what is wrong with it. logprobs: most alternatives to read at a token; None: none."""
    try:
        reply = json.loads(content)
    except (ValueError, RecursionError):
        html = content.lstrip()[:200].lower().startswith((b"<!doctype", b"<html", b"<head", b"<?xml"))
        return TeacherReply(None, "HTML instead of JSON" if html else "not JSON")
    usage = reply.get("usage") if isinstance(reply, dict) else None
    prompt_tokens, answer_tokens = (_count(usage, name) for name in ("prompt_tokens", "completion_tokens"))

    def failed(why: str, reason: str = "") -> TeacherReply:
        return TeacherReply(None, why, reason, prompt_tokens, answer_tokens)

    try:
        choice = reply["choices"][0]
        said, reason = choice["message"], str(choice.get("finish_reason") or "stop")
        text, calls = _text_of(said.get("content")), said.get("tool_calls") or []
    except (KeyError, IndexError, TypeError, AttributeError):
        return failed("no choices")
    if reason == "length":
        return failed("cut by max_tokens", reason)
    if reason == "content_filter":
        return failed("filtered by the server", reason)
    if not (text is None or isinstance(text, str)) or not isinstance(calls, list) or not all(map(_is_call, calls)):
        return failed("no choices", reason)
    if not (text or "").strip() and not calls:
        return failed("empty", reason)
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
    told = read_token_logs(choice, logprobs) if logprobs else None
    return TeacherReply(message, "", reason, prompt_tokens, answer_tokens, told)


def _text_of(content: Any) -> Any:
    """The text of a message's content, which some servers give as a list of parts; anything else as it is."""
    parts = content if isinstance(content, list) else []
    if parts and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        return "".join(part["text"] for part in parts)
    return content


def _is_call(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(call.get("function"), dict) and isinstance(call["function"].get("name"), str)


def _count(usage: Any, name: str) -> int:
    found = usage.get(name) if isinstance(usage, dict) else None
    return found if type(found) is int and found >= 0 else 0


def _seconds(header: str | None) -> float | None:
    """Seconds of a Retry-After header; None for a date or nonsense."""
    try:
        found = float(header) if header is not None else None
    except ValueError:
        return None
    return found if found is not None and 0 <= found < 1e6 else None


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


MILLION = 1_000_000


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

    def __init__(self, price: PriceSettings | None, max_cost: float | None, spent: float = 0.0):
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
