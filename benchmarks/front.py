"""What the front of `millrace serve` adds to a request.

    python -m benchmarks.front [--quick]

A server that answers a chat of 2 kB at once, the front, and the client are three processes. By turns, the client asks the
server itself and through the front, one request after the other on one connection. added_ms: difference of the two medians, and
of the two 99th percentiles, with the lowest and highest of the rounds. requests_per_s: through the front, AT_A_TIME at a time,
on as many cores as there are.
"""

import argparse
import asyncio
import http.client
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median

import numpy as np
from aiohttp import web

from benchmarks.record import record
from resources.gateway.front import Front
from resources.gateway.routes import Backend, Route
from resources.launching.processes import child_environment, python_module

ROUNDS, REQUESTS, AT_A_TIME, BURST = 7, 1_000, 16, 4_000
PATH = "/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a question of this length " * 20}]}).encode()
ANSWER = json.dumps({"choices": [{"message": {"role": "assistant", "content": "and its answer " * 130}}]}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer requests; nothing is recorded")
    parser.add_argument("--serve", choices=("server", "front"), help=argparse.SUPPRESS)
    parser.add_argument("--of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve == "server":
        asyncio.run(_server())
    elif given.serve == "front":
        _front(given.of)
    else:
        rounds, requests, burst = (2, 100, 200) if given.quick else (ROUNDS, REQUESTS, BURST)
        with _process("server") as server, _process("front", server) as front:
            record("front", _measured(server, front, rounds, requests, burst), keep=not given.quick)


def _measured(server: str, front: str, rounds: int, requests: int, burst: int) -> dict[str, object]:
    added: dict[str, list[float]] = {"p50": [], "p99": []}
    for place in (server, front):
        _milliseconds(place, requests // 4)  # the first requests are slower
    for _ in range(rounds):
        alone, through = (np.percentile(_milliseconds(place, requests), (50, 99)) for place in (server, front))
        for name, difference in zip(added, through - alone, strict=True):
            added[name].append(float(difference))
    began = time.perf_counter()
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        list(threads.map(lambda _: _milliseconds(front, burst // AT_A_TIME), range(AT_A_TIME)))
    return {
        "added_ms_p50": round(median(added["p50"]), 2),
        "added_ms_p99": round(median(added["p99"]), 2),
        "spread": {f"added_ms_{name}": [round(min(each), 2), round(max(each), 2)] for name, each in added.items()},
        "requests_per_s": round(burst // AT_A_TIME * AT_A_TIME / (time.perf_counter() - began)),
    }


def _milliseconds(place: str, requests: int) -> list[float]:
    """Of each of these requests, on one connection."""
    connection, found = http.client.HTTPConnection(place, timeout=30), []
    for _ in range(requests):
        began = time.perf_counter()
        connection.request("POST", PATH, BODY, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200 or answer.read() != ANSWER:
            raise SystemExit(f"{place} answered with HTTP {answer.status}, or with something else")
        found.append((time.perf_counter() - began) * 1_000)
    connection.close()
    return found


@contextmanager
def _process(kind: str, of: str = ""):
    """A process of this script; yields host:port."""
    command = python_module("benchmarks.front", "--serve", kind, *(["--of", of] if of else []))
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment())
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait()


async def _server() -> None:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=ANSWER, content_type="application/json")

    app = web.Application()
    app.router.add_post(PATH, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def _front(server: str) -> None:
    with Front("127.0.0.1", 0) as front:
        front.switch([Route(Backend(f"http://{server}", "release"))])
        print(f"127.0.0.1:{front.port}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
