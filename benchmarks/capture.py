"""What the capture layer adds to a request, how many it carries on one core, and what it loses when it is killed.

    python -m benchmarks.capture [--quick]

The server (answers at once, parses nothing), `millrace capture`, and the client are three processes on the loopback. added_ms:
by turns, the client asks the server itself and through the layer, one request after the other on one connection; differences
of the two medians and of the two 99th percentiles. requests_per_s: AT_A_TIME at a time, with the layer and its shipper bound to
one core; requests_per_cpu_s divides by the processor time of the layer's own process instead, which other work on the machine
does not change. lost: requests whose whole answer the client had, streams included, and that are in no object after KILLS kills
(SIGKILL at random moments, the same store and journal, a start after each). twice: requests that are in the objects twice.
"""

import argparse
import asyncio
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import zstandard

from benchmarks.record import record
from resources.launching.processes import child_environment, python_module

ROUNDS, REQUESTS, AT_A_TIME, BURST, KILLS = 7, 1_000, 16, 6_000, 10
LIVES_S = (0.5, 2.0)
STARTS_WITHIN_S = 60.0
PATH = "/v1/chat/completions"
QUESTION = "a question of this length " * 20
WORDS = "and its answer " * 130
USAGE = {"prompt_tokens": 120, "completion_tokens": 390}
WHOLE = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "model": "m",
        "usage": USAGE,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": WORDS}, "finish_reason": "stop"}],
    }
).encode()
EVENTS = (
    b"".join(
        f"data: {json.dumps(chunk)}\n\n".encode()
        for chunk in (
            {
                "id": "c",
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": end}],
            }
            for text, end in (("and ", None), ("its ", None), ("answer", "stop"))
        )
    )
    + b"data: [DONE]\n\n"
)
ANSWERS = {
    False: b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(WHOLE), WHOLE),
    True: b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
    % (len(EVENTS), EVENTS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer requests and kills; nothing is recorded")
    parser.add_argument("--server", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.server:
        asyncio.run(_server())
        return
    rounds, requests, burst, kills = (2, 100, 400, 2) if given.quick else (ROUNDS, REQUESTS, BURST, KILLS)
    with server() as place:
        record("capture", {**added(place, rounds, requests, burst), **killed(place, kills)}, keep=not given.quick)


def added(place: str, rounds: int, requests: int, burst: int) -> dict[str, object]:
    """Latency by turns, and throughput. place: host:port of the server."""
    found: dict[str, list[float]] = {"p50": [], "p99": []}
    with tempfile.TemporaryDirectory() as store, one_core(), layer(Path(store), place) as (through, process):
        for each in (place, through):
            _milliseconds(each, requests // 4)  # the first requests are slower
        for _ in range(rounds):
            alone, captured = (np.percentile(_milliseconds(each, requests), (50, 99)) for each in (place, through))
            for name, difference in zip(found, captured - alone, strict=True):
                found[name].append(float(difference))
        began, worked = time.perf_counter(), sum(process.cpu_times()[:2])
        with ThreadPoolExecutor(AT_A_TIME) as threads:
            list(threads.map(lambda _: _milliseconds(through, burst // AT_A_TIME), range(AT_A_TIME)))
        asked = burst // AT_A_TIME * AT_A_TIME
        wall, worked = time.perf_counter() - began, sum(process.cpu_times()[:2]) - worked
    return {
        "added_ms_p50": round(median(found["p50"]), 2),
        "added_ms_p99": round(median(found["p99"]), 2),
        "spread": {f"added_ms_{name}": [round(min(each), 2), round(max(each), 2)] for name, each in found.items()},
        "requests_per_s": round(asked / wall),
        "requests_per_cpu_s": round(asked / worked),
    }


def killed(place: str, kills: int, lives_s: tuple[float, float] = LIVES_S) -> dict[str, int]:
    """Kills the layer under load. place: host:port of the server."""
    answered: set[int] = set()
    with tempfile.TemporaryDirectory() as folder:
        store, first = Path(folder), 0
        for _ in range(kills):
            with layer(store, place, kill=True) as (through, process):
                over = threading.Event()
                with ThreadPoolExecutor(4) as threads:
                    asking = [threads.submit(_ask_until, through, over, first + number * 10_000_000) for number in range(4)]
                    time.sleep(random.uniform(*lives_s))
                    process.send_signal(signal.SIGKILL)
                    over.set()
                    for each in asking:
                        answered |= each.result()
            first += 100_000_000
        with layer(store, place):
            pass
        found = Counter(_numbers(store))
    return {
        "kills": kills,
        "answered": len(answered),
        "lost": len(answered - found.keys()),
        "twice": sum(count > 1 for count in found.values()),
    }


def _ask_until(place: str, over: threading.Event, first: int) -> set[int]:
    """Asks until the layer dies or the test is over. Returns the numbers of the requests that were answered whole."""
    found, number = set(), first
    connection = http.client.HTTPConnection(place, timeout=30)
    with suppress(OSError, http.client.HTTPException):
        while not over.is_set():
            number += 1
            streamed = number % 2 == 0
            connection.request("POST", PATH, _body(number, streamed), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status == 200 and answer.read() == (EVENTS if streamed else WHOLE):
                found.add(number)
    connection.close()
    return found


def _numbers(store: Path) -> Iterator[int]:
    for path in sorted(store.glob("dt=*/hour=*/traffic-*.jsonl.zst")):
        for line in zstandard.ZstdDecompressor().decompress(path.read_bytes()).splitlines():
            said = json.loads(line)
            if "error" not in said["response"]:
                yield said["request"]["seed"]


def _body(number: int, streamed: bool = False) -> bytes:
    return json.dumps(
        {
            "model": "m",
            "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0.7,
            "user": "u",
            "seed": number,
            **({"stream": True} if streamed else {}),
        }
    ).encode()


def _milliseconds(place: str, requests: int) -> list[float]:
    """Of each of these requests, on one connection."""
    connection, found = http.client.HTTPConnection(place, timeout=30), []
    for number in range(requests):
        body = _body(number)
        began = time.perf_counter()
        connection.request("POST", PATH, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200 or answer.read() != WHOLE:
            raise SystemExit(f"{place} answered with HTTP {answer.status}, or with something else")
        found.append((time.perf_counter() - began) * 1_000)
    connection.close()
    return found


@contextmanager
def one_core() -> Iterator[None]:
    """Processes that are started in this block run on one core."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def layer(store: Path, server: str, kill: bool = False) -> Iterator[tuple[str, psutil.Process]]:
    """`millrace capture` before the server; yields its host:port and its process. kill: the block kills it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = subprocess.Popen(
        python_module("pipelines.cli", "capture", str(store), "--to", f"http://{server}", "--port", str(port), "--every", "1"),
        env=child_environment(),
        stdout=subprocess.DEVNULL,
    )
    cores = os.sched_getaffinity(started.pid)
    if len(os.sched_getaffinity(0)) == 1:  # in `one_core`: this process goes on with the others, if there are any
        others = set(range(os.cpu_count() or 1)) - cores
        os.sched_setaffinity(0, others or cores)
    try:
        _wait_until_up(port, started)
        yield f"127.0.0.1:{port}", psutil.Process(started.pid)
        if not kill:
            started.terminate()
            started.wait(120)
    finally:
        started.kill()
        started.wait()


def _wait_until_up(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    raise SystemExit(f"millrace capture did not come up in {STARTS_WITHIN_S:g} s")


@contextmanager
def server() -> Iterator[str]:
    """The stand-in for an inference server; yields its host:port."""
    with subprocess.Popen(
        python_module("benchmarks.capture", "--server"),
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process.stdout.readline().strip()
        process.stdin.close()


class _Answering(asyncio.Protocol):
    """Answers every request of a connection at once: it looks for the end of a request only."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._waiting = transport, b""

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        while (end := self._waiting.find(b"\r\n\r\n")) >= 0:
            head = self._waiting[:end].lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            if len(self._waiting) < end + 4 + length:
                return
            body, self._waiting = self._waiting[end + 4 : end + 4 + length], self._waiting[end + 4 + length :]
            self._transport.write(ANSWERS[b'"stream"' in body])


async def _server() -> None:
    listening = await asyncio.get_running_loop().create_server(_Answering, "127.0.0.1", 0)
    print(f"127.0.0.1:{listening.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    main()
