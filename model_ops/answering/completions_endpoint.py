"""Answers from an OpenAI-compatible server that holds the target's weights: token ids in, token ids out.

Uses POST /completions with the prompt as ids and `return_token_ids` (vLLM 0.10.2 or newer), so no text is tokenized again.
Sampling parameters other than temperature and truncation are sent unchanged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from model_ops.answering.endpoint import Endpoint
from model_ops.answering.sampling_parameters import Sampling
from model_ops.answering.settings import EndpointSettings
from model_ops.jobs import ModelError

KEY = "answers.endpoint"


@dataclass(frozen=True)
class CompletionTokens:
    """One answer: its token ids, with the end-of-text token if the target gave it."""

    tokens: list[int]
    finish_reason: Literal["stop", "length"]


class CompletionsEndpoint:
    """Client of a completions API; thread-safe. Raises ModelError if the environment variable of the key is empty."""

    def __init__(self, settings: EndpointSettings):
        self.settings = settings
        self._endpoint = Endpoint(settings, KEY)

    def __enter__(self) -> CompletionsEndpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._endpoint.__exit__()

    def check(self) -> int | None:
        """Most tokens of prompt and answer together (vLLM's max_model_len); None if the server does not say.

        Raises ModelError if the server cannot be reached or does not serve the recipe's model."""
        listed = self._asked("GET", "/models", None)
        served = {entry.get("id"): entry for entry in listed.get("data") or [] if isinstance(entry, dict)}
        names = list(served)
        if self.settings.model not in names:
            raise ModelError(
                f"{KEY}: {self.settings.base_url} serves {', '.join(map(str, names)) or 'nothing'}, "
                f"not {self.settings.model}: start it with the target's weights under that name"
            )
        longest = served[self.settings.model].get("max_model_len")
        return longest if type(longest) is int and longest > 0 else None

    def answer(self, prompt: list[int], sampling: Sampling, max_tokens: int) -> CompletionTokens:
        """The target's answer to a prompt. Raises ModelError if the server refuses it or its reply is incomplete."""
        body: dict[str, Any] = {
            **sampling.as_request(),
            "model": self.settings.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "return_token_ids": True,
        }
        reply = self._asked("POST", "/completions", body)
        try:
            choice = reply["choices"][0]
            tokens, reason = choice.get("token_ids"), choice.get("finish_reason")
            seen = choice.get("prompt_token_ids", reply.get("prompt_token_ids"))
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ModelError(f"{KEY}: {self.settings.base_url} did not reply with a completion; check base_url") from error
        if not isinstance(tokens, list) or not tokens or any(type(token) is not int for token in tokens):
            raise ModelError(
                f"{KEY}: {self.settings.base_url} returned no token ids; serve the target with vLLM "
                "0.10.2 or newer, which knows return_token_ids"
            )
        if isinstance(seen, list) and seen != prompt:
            raise ModelError(
                f"{KEY}: {self.settings.base_url} changed a prompt of {len(prompt)} token ids into "
                f"{len(seen)}: switch off whatever adds or removes tokens on that server"
            )
        return CompletionTokens(tokens, "stop" if reason == "stop" else "length")

    def _asked(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        data = self._endpoint.content(
            method, path, body, wants="check base_url, model, api_key_env and the server's longest context"
        )
        try:
            content = json.loads(data)
        except ValueError as error:
            raise ModelError(f"{KEY}: {self.settings.base_url}{path} did not reply with JSON; check base_url") from error
        return content if isinstance(content, dict) else {}
