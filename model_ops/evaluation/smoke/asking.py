"""Asks a server that is being tried: chats, streamed chats and completions as JSON.

Messages of errors hold no content of an answer: it may repeat text of users.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import urllib3

from model_ops.answering import OpenAiApi


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
