"""Checks of the smoke set that need nothing but text, each with a `SmokeResult`, and the requests that they make."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import urllib3

from model_ops.completions import NEUTRAL, OpenAiApi
from model_ops.jobs import counted


class NoAnswerError(Exception):
    """The server did not answer as an OpenAI-compatible server does."""


class TooLong(NoAnswerError):
    """The server refused a request because prompt and answer do not fit its context."""


class NoParser(NoAnswerError):
    """vLLM refused a request with a tool because it was started without a parser of tool calls."""


REFUSALS = {b"context length": TooLong, b"--tool-call-parser": NoParser}
"""Part of the text of an HTTP 400 -> what it means."""


@dataclass(frozen=True)
class SmokePrompt:
    """One request of the smoke set."""

    row_id: str
    """Id of a held-out row; "built-in" for a prompt of this project."""
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    request: dict[str, Any] = field(default_factory=dict)
    """Fields of the request besides messages and tools (chat_template_kwargs, response_format, ...)."""


class SmokeClient:
    """model: its name in requests. plain: send only what OpenAI's API defines, for servers that refuse other fields."""

    def __init__(self, url: str, model: str, timeout_s: float, plain: bool = False):
        self.url, self.model, self.plain = url, model, plain
        self._api = OpenAiApi(url, api_key=None, connections=4, timeout_s=timeout_s, through_proxy=False)

    def close(self) -> None:
        self._api.close()

    def chat(self, prompt: SmokePrompt, **more: Any) -> dict[str, Any]:
        """The first choice of the answer, and `prompt_token_ids` beside it. Raises NoAnswerError."""
        said = self._json("/v1/chat/completions", self._body(prompt, more))
        try:
            choice = said["choices"][0]
            message = choice["message"]
            if not isinstance(message.get("content"), str | None) or not isinstance(choice["finish_reason"], str):
                raise TypeError
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise NoAnswerError("its answer is no chat completion") from error
        return {**choice, "prompt_token_ids": said.get("prompt_token_ids")}

    def stream(self, prompt: SmokePrompt, **more: Any) -> tuple[str, str | None, bool]:
        """The text of a streamed answer, its finish_reason, and whether the stream ended as it should. Raises NoAnswerError."""
        content = self._content("/v1/chat/completions", {**self._body(prompt, more), "stream": True})
        text, reason, ended = "", None, False
        try:
            for line in content.decode().splitlines():
                if not line.startswith("data:"):
                    continue
                event = line.removeprefix("data:").strip()
                if event == "[DONE]":
                    ended = True
                    continue
                for choice in json.loads(event).get("choices", []):
                    text += choice.get("delta", {}).get("content") or ""
                    reason = choice.get("finish_reason") or reason
        except (ValueError, AttributeError, TypeError) as error:
            raise NoAnswerError("its stream is no list of chat completion chunks") from error
        return text, reason, ended

    def completion(self, ids: list[int], **more: Any) -> dict[str, Any]:
        """The first choice of a completion of token ids. Raises NoAnswerError."""
        said = self._json("/v1/completions", {"model": self.model, "prompt": ids, **more})
        try:
            return dict(said["choices"][0])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise NoAnswerError("its answer is no completion") from error

    def status(self, path: str, body: dict[str, Any] | None = None) -> int:
        """The HTTP status of a request. Raises NoAnswerError if there is no answer at all."""
        return self._response("GET" if body is None else "POST", path, body).status

    def _body(self, prompt: SmokePrompt, more: dict[str, Any]) -> dict[str, Any]:
        body = {"model": self.model, "messages": prompt.messages, "temperature": 0.0, **more}
        if prompt.tools and "tools" not in more:
            body["tools"] = prompt.tools
            if not self.plain:
                body["tool_choice"] = "none"  # vLLM refuses `auto`, the default, where it was started without a parser
        kwargs = prompt.request.get("chat_template_kwargs")
        if isinstance(kwargs, dict) and kwargs:
            body["chat_template_kwargs"] = kwargs
        if not self.plain and prompt.request.get("reasoning_effort") is not None:
            body["reasoning_effort"] = prompt.request["reasoning_effort"]
        return body

    def _json(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            said = json.loads(self._content(path, body))
        except ValueError as error:
            raise NoAnswerError("its answer is no JSON") from error
        if not isinstance(said, dict):
            raise NoAnswerError("its answer is no JSON object")
        return said

    def _content(self, path: str, body: dict[str, Any]) -> bytes:
        response = self._response("POST", path, body)
        if response.status != 200:
            kinds = (kind for part, kind in REFUSALS.items() if response.status == 400 and part in response.data)
            raise next(kinds, NoAnswerError)(f"it answered {path} with HTTP {response.status}")
        return response.data

    def _response(self, method: str, path: str, body: dict[str, Any] | None) -> urllib3.BaseHTTPResponse:
        try:
            return self._api.request(method, path, body)
        except urllib3.exceptions.HTTPError as error:
            raise NoAnswerError(f"it did not answer {path} ({type(error).__name__})") from error


MOST_TOKENS, MOST_PROMPTS = 64, 5
REASONS = ("stop", "length", "tool_calls")
STOP_CHARACTERS = 4
LONGEST_PROMPT = 8_192
"""Tokens of the long prompt at most: a longer one takes minutes on a CPU."""
ROOM = 16


@dataclass(frozen=True)
class SmokeAnswer:
    """A greedy answer."""

    prompt: SmokePrompt
    text: str
    prompt_ids: list[int] | None
    ids: list[int] | None
    """prompt_ids, ids: None where the server does not give token ids."""


def greedy(asking: SmokeClient) -> dict[str, object]:
    """Fields of a request for a greedy answer with its token ids."""
    return {"max_tokens": MOST_TOKENS} if asking.plain else {"max_tokens": MOST_TOKENS, "return_token_ids": True, **NEUTRAL}


def ask_prompts(asking: SmokeClient, prompts: Sequence[SmokePrompt]) -> tuple[list[SmokeResult], list[SmokeAnswer]]:
    """Asks prompts until MOST_PROMPTS are answered; those that do not fit the server's context are left out. One of them is
    asked as a stream, too."""
    answers: list[SmokeAnswer] = []
    too_long = 0
    for prompt in prompts:
        if len(answers) == MOST_PROMPTS:
            break
        try:
            choice = asking.chat(prompt, **greedy(asking))
        except TooLong:
            too_long += 1
            continue
        except NoAnswerError as error:
            return [SmokeResult("answers", False, f"row {prompt.row_id}: {error}")], answers
        if choice["finish_reason"] not in REASONS:
            said = f"row {prompt.row_id}: its answer ended with an unknown finish_reason"
            return [SmokeResult("answers", False, said)], answers
        answers.append(
            SmokeAnswer(
                prompt, choice["message"].get("content") or "", _ids(choice["prompt_token_ids"]), _ids(choice.get("token_ids"))
            )
        )
    if not answers:
        return [SmokeResult("answers", False, f"none of {counted(too_long, 'prompt')} fits its context")], answers
    if not any(answer.text.strip() for answer in answers):
        return [SmokeResult("answers", False, f"it answered {counted(len(answers), 'prompt')} with no text at all")], answers
    said = counted(len(answers), "prompt") + (f"; {too_long} more did not fit its context" if too_long else "")
    return [SmokeResult("answers", True, said), _stream(asking, answers)], answers


def _stream(asking: SmokeClient, answers: Sequence[SmokeAnswer]) -> SmokeResult:
    answer = next(answer for answer in answers if answer.text.strip())
    more = {name: value for name, value in greedy(asking).items() if name != "return_token_ids"}
    try:
        text, reason, ended = asking.stream(answer.prompt, **more)
    except NoAnswerError as error:
        return SmokeResult("stream", False, str(error))
    if reason is None or not text.strip() or not (ended or asking.plain):
        missing = "no text" if not text.strip() else "no finish_reason" if reason is None else "no end ([DONE])"
        return SmokeResult("stream", False, f"row {answer.prompt.row_id}: the streamed answer has {missing}")
    return SmokeResult("stream", True, "a streamed answer")


def check_stop(asking: SmokeClient, answers: Sequence[SmokeAnswer]) -> SmokeResult:
    """Asks for an answer again, with a part of it as the stop text: the part must not come back."""
    long_enough = [answer for answer in answers if len(answer.text) >= 3 * STOP_CHARACTERS]
    if not long_enough:
        return SmokeResult("stop", None, "every answer is too short to be stopped")
    answer = long_enough[0]
    middle = len(answer.text) // 2
    stop = answer.text[middle : middle + STOP_CHARACTERS]
    try:
        choice = asking.chat(answer.prompt, stop=[stop], **greedy(asking))
    except NoAnswerError as error:
        return SmokeResult("stop", False, str(error))
    if stop in (choice["message"].get("content") or ""):
        return SmokeResult("stop", False, f"row {answer.prompt.row_id}: the answer goes on after its stop text")
    return SmokeResult("stop", True, "the answer ends before its stop text")


def check_long_prompt(asking: SmokeClient, longest: int | None, answers: Sequence[SmokeAnswer]) -> SmokeResult:
    """A prompt that nearly fills the context is answered, and one that is too long is refused and harms nothing. longest: most
    tokens of prompt and answer together."""
    ids = next((answer.prompt_ids for answer in answers if answer.prompt_ids), None)
    if longest is None or ids is None:
        return SmokeResult("long prompt", None, "the server says neither its longest context nor token ids")
    length = max(1, min(longest, LONGEST_PROMPT) - ROOM)
    many = (ids * (length // len(ids) + 1))[:length]
    try:
        asking.completion(many, max_tokens=1, temperature=0.0)
        if longest <= LONGEST_PROMPT:
            too_long = (ids * (longest // len(ids) + 1))[: longest + 1]
            status = asking.status("/v1/completions", {"model": asking.model, "prompt": too_long, "max_tokens": 1})
            if not 400 <= status < 500:
                return SmokeResult("long prompt", False, f"a prompt longer than its context is answered with HTTP {status}")
        if asking.status("/health") != 200:
            return SmokeResult("long prompt", False, "it is not healthy after a long prompt")
    except NoAnswerError as error:
        return SmokeResult("long prompt", False, f"{length} tokens: {error}")
    return SmokeResult("long prompt", True, f"{length} tokens")


def _ids(value: object) -> list[int] | None:
    """Token ids as a server gave them; None for anything else."""
    return value if isinstance(value, list) and value and all(type(each) is int for each in value) else None


@dataclass(frozen=True)
class SmokeResult:
    """Result of one smoke check."""

    name: str
    passed: bool | None
    """None if the check could not be made with this server, and `said` says why."""
    said: str
    """Details without any text of users: ids of rows, and numbers."""
