"""Load on a server while its releases are switched: every request is checked to the end of its answer.

    python -m benchmarks.switch_load URL MODEL --at-a-time 8 --pause 0.1 > answers.jsonl      # until its standard input closes

Every second request is a stream. A line a request: {"at", "seconds", "stream", "release", "problem"}; `at` is the time of its
start (time.time), problem is null for a whole answer with a finish_reason. Nothing is sent again.
"""

import argparse
import asyncio
import json
import sys
import time
from typing import Any

import aiohttp

HEADER = "X-Millrace-Release"


async def load(url: str, model: str, at_a_time: int, pause_s: float, max_tokens: int) -> None:
    """Asks until standard input closes."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read).add_done_callback(lambda _: stopped.set())
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client:

        async def client_loop(place: int) -> None:
            number = place
            while not stopped.is_set():
                print(json.dumps(await _ask(client, model, number, max_tokens)), flush=True)
                number += at_a_time
                await asyncio.sleep(pause_s)

        await asyncio.gather(*map(client_loop, range(at_a_time)))


async def _ask(client: aiohttp.ClientSession, model: str, number: int, max_tokens: int) -> dict[str, Any]:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"Question {number}: what comes next?"}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "stream": number // 8 % 2 == 0,
    }
    at, began = time.time(), time.perf_counter()
    release, problem = None, None
    try:
        async with client.post("/v1/chat/completions", json=body) as answer:
            release, content = answer.headers.get(HEADER), await answer.read()
            problem = f"HTTP {answer.status}" if answer.status != 200 else _problem(content, body["stream"])
    except (aiohttp.ClientError, TimeoutError) as error:
        problem = type(error).__name__
    return {"at": at, "seconds": time.perf_counter() - began, "stream": body["stream"], "release": release, "problem": problem}


def _problem(content: bytes, stream: bool) -> str | None:
    """What is wrong with an answer; None if it is whole."""
    try:
        if not stream:
            return None if json.loads(content)["choices"][0]["finish_reason"] in ("stop", "length") else "no finish_reason"
        events = [line[6:] for line in content.decode().splitlines() if line.startswith("data: ")]
        reasons = [choice.get("finish_reason") for event in events[:-1] for choice in json.loads(event)["choices"]]
        return None if events[-1:] == ["[DONE]"] and {"stop", "length"} & set(reasons) else "the stream has no end"
    except (ValueError, KeyError, IndexError, TypeError):
        return "not a completion"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--at-a-time", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between an answer and the client's next request")
    parser.add_argument("--max-tokens", type=int, default=24)
    given = parser.parse_args()
    asyncio.run(load(given.url, given.model, given.at_a_time, given.pause, given.max_tokens))
