"""Benchmarks a server with an OpenAI-compatible API: latency, tokens/s and draft acceptance. Imports no torch.

Requests are sent in a closed loop, `concurrency` at a time, and never repeated, which would distort the figures. Acceptance is
the difference of vLLM's counters at /metrics, so no one else may use the server meanwhile; None without such counters."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import urllib3

from model_ops.completions.openai_api import OpenAiApi
from model_ops.completions.settings import plain_address
from model_ops.jobs import ModelError

PERCENTILES = (50, 90, 99)
CONNECTIONS = 256
NEUTRAL = {"repetition_penalty": 1, "top_k": -1, "top_p": 1, "min_p": 0}
"""Servers fill in missing parameters from generation_config.json, and a penalty changes greedy answers too."""
_COUNTER = re.compile(
    r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)_total\{(.*)\} (\S+)$"
)

PromptLike = Sequence[int] | Sequence[dict[str, Any]]


@dataclass(frozen=True)
class ServedAnswer:
    """One answer."""

    text: str
    tokens: int
    finish_reason: str
    latency_s: float
    token_ids: list[int] | None
    """None if the server returns none; vLLM returns them for prompts of token ids."""


@dataclass(frozen=True)
class ServedAcceptance:
    """vLLM's counters: rounds with a draft, drafted tokens, accepted tokens, and accepted tokens by position."""

    drafts: int
    drafted: int
    accepted: int
    accepted_at: list[int]

    @property
    def tau(self) -> float:
        """Acceptance length: 1 + accepted / drafts; 1 without drafts."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0

    def since(self, before: ServedAcceptance) -> ServedAcceptance:
        """The counters minus earlier ones."""
        accepted_at = [now - then for now, then in zip_longest(self.accepted_at, before.accepted_at, fillvalue=0)]
        drafts, drafted = self.drafts - before.drafts, self.drafted - before.drafted
        return ServedAcceptance(drafts, drafted, self.accepted - before.accepted, accepted_at)


@dataclass(frozen=True)
class ServedMeasure:
    """The measurement of all prompts at one concurrency."""

    replies: list[ServedAnswer]
    seconds: float
    acceptance: ServedAcceptance | None

    @property
    def tokens(self) -> int:
        return sum(reply.tokens for reply in self.replies)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def latency_s(self) -> dict[str, float]:
        """p50, p90 and p99 of the requests' latency in seconds."""
        values = np.percentile([reply.latency_s for reply in self.replies], PERCENTILES)
        return {f"p{percentile}": float(value) for percentile, value in zip(PERCENTILES, values, strict=True)}


class ServedModel:
    """Client of a server; thread-safe. url: its address, with or without /v1. through_proxy: whether the environment's proxy
    may be used."""

    def __init__(
        self, url: str, model: str | None = None, api_key: str | None = None, timeout_s: float = 600, through_proxy: bool = True
    ):
        try:
            self.url = plain_address(url).removesuffix("/v1")
        except ValueError as error:
            raise ModelError(str(error)) from error
        self._api = OpenAiApi(
            self.url, api_key=api_key, connections=CONNECTIONS, timeout_s=timeout_s, through_proxy=through_proxy
        )
        self._model = model

    def __enter__(self) -> ServedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self._api.close()

    @property
    def model(self) -> str:
        """Model name in requests: the given one, or the first that the server lists. Raises ModelError if the request fails."""
        if self._model is None:
            self._model = str(self._listed()["id"])
        return self._model

    @property
    def longest(self) -> int | None:
        """Most tokens of prompt and answer together (vLLM's max_model_len); None if the server does not say."""
        longest = self._listed().get("max_model_len")
        return longest if type(longest) is int and longest > 0 else None

    @property
    def version(self) -> str | None:
        """The server's version at /version, as vLLM gives it; None if it does not say."""
        try:
            return str(json.loads(self._request("GET", "/version"))["version"])
        except (ModelError, ValueError, KeyError, TypeError):
            return None

    def log_probabilities(self, ids: Sequence[int]) -> list[float]:
        """Log-probability in nats of each token but the first, given those before it. Raises ModelError if the request fails or
        the reply does not hold them."""
        content = self._request(
            "POST",
            "/v1/completions",
            {"model": self.model, "prompt": list(ids), "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0},
        )
        try:
            logs = json.loads(content)["choices"][0]["logprobs"]["token_logprobs"][1 : len(ids)]
            if len(logs) == len(ids) - 1:
                return [float(each) for each in logs]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ModelError(f"{self.url} did not answer with log-probabilities of the prompt (echo, logprobs)") from error
        raise ModelError(f"{self.url} gave {len(logs) + 1} log-probabilities to a prompt of {len(ids)} tokens")

    def answer(
        self,
        prompt: PromptLike,
        *,
        temperature: float,
        max_tokens: int,
        seed: int | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        **more: Any,
    ) -> ServedAnswer:
        """One answer. more: further fields of the request. Raises ModelError if the request fails."""
        body = {"model": self.model, "temperature": temperature, "max_tokens": max_tokens, **more}
        if seed is not None:
            body["seed"] = seed
        is_ids = bool(prompt) and isinstance(prompt[0], int)
        if is_ids:
            body |= {"prompt": list(prompt), "return_token_ids": True}
        else:
            body |= {"messages": list(prompt), **({"tools": list(tools)} if tools else {})}
        started_s = time.perf_counter()
        content = self._request("POST", "/v1/completions" if is_ids else "/v1/chat/completions", body)
        latency_s = time.perf_counter() - started_s
        try:
            said = json.loads(content)
            choice = said["choices"][0]
            text = (
                choice["text"]
                if is_ids
                else choice["message"].get("content") or json.dumps(choice["message"].get("tool_calls") or "")
            )
            return ServedAnswer(
                text, int(said["usage"]["completion_tokens"]), str(choice["finish_reason"]), latency_s, choice.get("token_ids")
            )
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ModelError(f"{self.url} did not answer with a completion: is it an OpenAI-compatible server?") from error

    def _listed(self) -> dict[str, Any]:
        """The first model that the server lists."""
        try:
            model = json.loads(self._request("GET", "/v1/models"))["data"][0]
            return model | {"id": model["id"]}
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ModelError(f"{self.url} lists no model at /v1/models: is it an OpenAI-compatible server?") from error

    def acceptance(self) -> ServedAcceptance | None:
        """The counters since the server's start, summed over its engines; None if it has none."""
        try:
            return read_counters(self._request("GET", "/metrics").decode())
        except ModelError:
            return None  # a server without /metrics can still be timed

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        try:
            response = self._api.request(method, path, body)
        except urllib3.exceptions.HTTPError as error:
            raise ModelError(f"{self.url} does not answer ({type(error).__name__}): is the server running?") from error
        if response.status != 200:
            raise ModelError(f"{self.url}{path} answered with HTTP {response.status}")
        return response.data


def measure_served(
    server: ServedModel,
    prompts: Sequence[PromptLike],
    *,
    concurrency: int,
    max_tokens: int,
    temperature: float = 0.0,
    tools: Sequence[Sequence[dict[str, Any]] | None] | None = None,
    seed: int | None = None,
    check: Callable[[], None] = lambda: None,
    each: Sequence[Mapping[str, Any]] | None = None,
    **more: Any,
) -> ServedMeasure:
    """Sends all prompts, `concurrency` at a time. seed: request i is sampled with seed + i; None: the server chooses. check:
    called before each request, and may raise. more: further fields of every request; each: of request i, which go before them
    and before `temperature`. Raises ModelError if a request fails."""
    server.model  # noqa: B018  asked for once, before any clock runs
    offered = tools or [None] * len(prompts)
    before = server.acceptance()

    def ask(place: int) -> ServedAnswer:
        check()
        fields = {"temperature": temperature, **more, **(each[place] if each else {})}
        return server.answer(
            prompts[place], max_tokens=max_tokens, tools=offered[place], seed=None if seed is None else seed + place, **fields
        )

    started_s = time.perf_counter()
    with ThreadPoolExecutor(max_workers=concurrency) as threads:
        replies = list(threads.map(ask, range(len(prompts))))
    seconds = time.perf_counter() - started_s
    after = server.acceptance()
    return ServedMeasure(replies, seconds, after.since(before) if after and before else None)


def read_counters(metrics: str) -> ServedAcceptance | None:
    """vLLM's draft counters in a Prometheus text, summed over engines; None if there are none."""
    totals = {"drafts": 0.0, "draft_tokens": 0.0, "accepted_tokens": 0.0}
    positions: dict[int, float] = {}
    any_counter = False
    for line in metrics.splitlines():
        match = _COUNTER.match(line)
        if match is None:
            continue
        any_counter = True
        name, labels, value = match[1], match[2], float(match[3])
        if name == "accepted_tokens_per_pos":
            for position in map(int, re.findall(r'position="(\d+)"', labels)):
                positions[position] = positions.get(position, 0) + value
        else:
            totals[name] += value
    if not any_counter:
        return None
    return ServedAcceptance(
        int(totals["drafts"]),
        int(totals["draft_tokens"]),
        int(totals["accepted_tokens"]),
        [int(positions.get(position, 0)) for position in range(max(positions, default=-1) + 1)],
    )
