"""Asks an endpoint what the people of a simulated week ask, and says what came back.

    answers = ask(url, requests, at_a_time=4, answered=lambda count: ...)      # Answer of each, in the order of the requests

Nothing is sent again: a request fails if its client does not get a whole answer. `answered` is called with the number of
requests that are over, after each.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from benchmarks.week_rows import Asked

WAITS_S = 600.0
RELEASE = "X-Millrace-Release"


@dataclass(frozen=True)
class Answer:
    """problem: why a request failed; "" where it was answered, or refused where it had to be. drafts, accepted: of this
    request, as its server counts them; 0 where it does not say."""

    kind: str
    seconds: float
    release: str = ""
    problem: str = ""
    drafts: int = 0
    accepted: int = 0
    text: str = ""


def ask(url: str, requests: Sequence[Asked], at_a_time: int, answered: Callable[[int], None]) -> list[Answer]:
    """Returns when every request is over."""
    return asyncio.run(_ask(url, requests, at_a_time, answered))


async def _ask(url: str, requests: Sequence[Asked], at_a_time: int, answered: Callable[[int], None]) -> list[Answer]:
    found: list[Answer | None] = [None] * len(requests)
    places, over = iter(range(len(requests))), 0
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=WAITS_S)) as client:

        async def person() -> None:
            nonlocal over
            for place in places:
                found[place] = await _one(client, requests[place])
                over += 1
                answered(over)

        await asyncio.gather(*(person() for _ in range(at_a_time)))
    return [each for each in found if each is not None]


async def _one(client: aiohttp.ClientSession, asked: Asked) -> Answer:
    began = time.perf_counter()
    try:
        async with client.post("/v1/chat/completions", json=asked.body, headers={"X-Session-Id": asked.session}) as answer:
            content = await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        return Answer(asked.kind, time.perf_counter() - began, problem=type(error).__name__)
    seconds, release = time.perf_counter() - began, answer.headers.get(RELEASE, "")
    if asked.kind == "refused":
        problem = "" if 400 <= answer.status < 500 else f"HTTP {answer.status} instead of a refusal"
        return Answer(asked.kind, seconds, release, problem)
    if answer.status != 200:
        return Answer(asked.kind, seconds, release, f"HTTP {answer.status}")
    try:
        said = json.loads(content)
        choice = said["choices"][0]
        counted = (said.get("metrics") or {}).get("speculative_decoding") or {}
        problem = "" if choice["finish_reason"] in ("stop", "length", "tool_calls") else "no finish_reason"
        return Answer(
            asked.kind,
            seconds,
            release,
            problem,
            counted.get("num_spec_steps") or 0,
            counted.get("num_accepted_draft_tokens") or 0,
            choice["message"].get("content") or "",
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return Answer(asked.kind, seconds, release, "not a completion")
