"""Sources of the target's answers: the project's own generator, or an endpoint that serves the same weights.

    with answerer(target, settings) as answers:
        replies = answers.answer(asked)               # a Reply for each Asked
        for chunk in answers.chunks(asked): ...       # groups to answer together

The generator supports temperature, top-p, top-k, min-p and penalties. `refused(sampling)` names the other parameters of a
request; a turn with any of them is left out and counted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Protocol

from model_ops.completions.endpoint import Endpoint
from model_ops.completions.sampling_parameters import Sampling
from model_ops.completions.settings import EndpointSettings, GenerateSettings
from model_ops.completions.turns import Dialogue
from model_ops.decoding import Runner, decode, load_runner
from model_ops.jobs import ModelError
from model_ops.models import end_of_text_ids, read_config

KEY = "answers.endpoint"


@dataclass(frozen=True)
class CompletionTokens:
    """One answer: its token ids, with the end-of-text token if the target gave it."""

    tokens: list[int]
    finish_reason: Literal["stop", "length"]


class CompletionsEndpoint:
    """Client of a server with the target's weights: token ids in and out (POST /completions with `return_token_ids`, vLLM
    0.10.2 or newer), so no text is tokenized again. Thread-safe. Raises ModelError if the environment variable of the key is
    empty."""

    def __init__(self, settings: EndpointSettings):
        self.settings, self._endpoint = settings, Endpoint(settings, KEY, tail="; finished answers are kept")
        self.each = self._endpoint.each

    def __enter__(self) -> CompletionsEndpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._endpoint.__exit__()

    def check(self) -> int | None:
        """Most tokens of prompt and answer together (vLLM's max_model_len); None if the server does not say. Raises ModelError
        if the server cannot be reached or does not serve the recipe's model."""
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


CHUNK_BATCHES = 4
"""Batches in a chunk; a killed run loses at most one chunk."""


@dataclass(frozen=True)
class PromptTurn:
    """One turn of a conversation with its prompt as token ids and its sampling parameters."""

    conversation: Dialogue
    turn: int
    ids: list[int]
    sampling: Sampling

    @property
    def name(self) -> str:
        """Name of the turn in the seed of its random numbers."""
        return f"{self.conversation.row_id}#{self.turn}"

    @property
    def interaction_id(self) -> str | None:
        return self.conversation.interaction_ids[self.turn]


class Answerer(Protocol):
    """A source of answers."""

    positions: int
    """Most tokens of prompt and answer together."""

    def refused(self, sampling: Sampling) -> list[str]:
        """Parameters of a request that this source does not support."""

    def chunks(self, asked: Sequence[PromptTurn]) -> list[list[PromptTurn]]:
        """The turns in groups that are answered together; a function of the turns only."""

    def answer(self, asked: Sequence[PromptTurn]) -> list[CompletionTokens]:
        """The target's answers, in order."""


@contextmanager
def answerer(target: Path, settings: GenerateSettings) -> Iterator[Answerer]:
    """The source of answers that the settings name. Raises ModelError if it cannot be used."""
    if settings.endpoint is None:
        yield OwnGenerator(target, settings)
        return
    with CompletionsEndpoint(settings.endpoint) as endpoint:
        positions = read_config(target)["max_position_embeddings"]
        yield ServerAnswerer(endpoint, settings, min(positions, endpoint.check() or positions))


class OwnGenerator:
    """The project's own decoder; loads the weights with the first request."""

    def __init__(self, target: Path, settings: GenerateSettings):
        self.target, self.settings = target, settings
        self.runner: Runner | None = None
        self.positions = read_config(target)["max_position_embeddings"]

    def refused(self, sampling: Sampling) -> list[str]:
        return sampling.unsupported_names

    def chunks(self, asked: Sequence[PromptTurn]) -> list[list[PromptTurn]]:
        def sampled_alike(each: PromptTurn) -> tuple:
            return each.sampling.temperature, *astuple(each.sampling.truncation), *astuple(each.sampling.penalties)

        size, groups = self.settings.batch_size * CHUNK_BATCHES, []
        for _, alike in groupby(sorted(asked, key=lambda each: (*sampled_alike(each), len(each.ids))), sampled_alike):
            group = list(alike)
            groups += [group[start : start + size] for start in range(0, len(group), size)]
        return groups

    def answer(self, asked: Sequence[PromptTurn]) -> list[CompletionTokens]:
        """Answers to turns with the same sampling parameters, as `chunks` groups them."""
        self.runner = self.runner or load_runner(self.target)
        sampling = asked[0].sampling
        answers = decode(
            self.runner,
            [each.ids for each in asked],
            [each.name for each in asked],
            eos_ids=end_of_text_ids(self.target),
            temperature=sampling.temperature,
            truncation=sampling.truncation,
            penalties=sampling.penalties,
            seed=self.settings.seed,
            max_new_tokens=self.settings.max_new_tokens,
            batch_size=self.settings.batch_size,
        )
        replies = []
        for each, answer in zip(asked, answers, strict=True):
            limit = room_of(each, self.settings)
            cut = len(answer.tokens) > limit
            replies.append(CompletionTokens(answer.tokens[:limit], "length" if cut else answer.finish_reason))
        return replies


class ServerAnswerer:
    """Answers from a server, many requests at a time."""

    def __init__(self, endpoint: CompletionsEndpoint, settings: GenerateSettings, positions: int):
        self.endpoint, self.settings, self.positions = endpoint, settings, positions

    def refused(self, sampling: Sampling) -> list[str]:
        # a forced tool call needs the chat API, and prompts are sent as token ids
        return [name for name in sampling.other_names if name == "tool_choice"]

    def chunks(self, asked: Sequence[PromptTurn]) -> list[list[PromptTurn]]:
        size = self.endpoint.settings.concurrency * CHUNK_BATCHES
        ordered = sorted(asked, key=lambda each: len(each.ids))
        return [ordered[start : start + size] for start in range(0, len(ordered), size)]

    def answer(self, asked: Sequence[PromptTurn]) -> list[CompletionTokens]:
        def ask(each: PromptTurn) -> CompletionTokens:
            room = min(room_of(each, self.settings), self.positions - len(each.ids))  # many servers refuse more
            return self.endpoint.answer(each.ids, each.sampling, room)

        return list(self.endpoint.each(ask, asked))


def room_of(asked: PromptTurn, settings: GenerateSettings) -> int:
    """Most tokens of an answer: the logged request's limit or the settings' limit, whichever is smaller."""
    return min(settings.max_new_tokens, asked.sampling.max_tokens or settings.max_new_tokens)
