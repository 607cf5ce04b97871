"""A server on a free port of the loopback for as long as a block runs, which begins when /health says that it can be asked.

It is started by a guard (server_guard.py) and ends with the block, and with this process, however this process ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO

import urllib3

from model_ops.machine import pipe_of
from model_ops.serving import server_guard

LONGEST_LINE = 300
_EXCEPTION = re.compile(r"\b[\w.]*(?:Error|Exception)\b: .+")
_PROCESS = re.compile(r"^\(\w+ pid=\d+\) ")
"""How vLLM begins a line of each of its processes."""
_ELSEWHERE = "root cause above"
"""Part of a message of a server whose other process has failed: the cause is an earlier line."""


class ServerFailed(Exception):
    """The server did not start, or ended; the message says how, and quotes the log's line that says why. Nothing was asked
    before, so that line holds no text of users."""


class NotRunnable(Exception):
    """The command cannot be run at all."""


@dataclass(frozen=True)
class RunningServer:
    """A server that answers requests."""

    url: str
    """Address without a path."""
    process_id: int
    """Process id of the server, which is also its process group."""
    started_s: float
    """Seconds from the start until it answered."""
    _guard: subprocess.Popen[str]

    def ends_within(self, seconds: float) -> bool:
        """Whether it has ended, or does so in this time."""
        try:
            self._guard.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def memory_mb(self) -> float | None:
        """Resident memory of all its processes, in MB (shared pages count for each of them); None where there is no /proc."""
        sizes = [
            kilobytes
            for stat in Path("/proc").glob("[0-9]*/stat")
            if _group_of(stat) == self.process_id
            for kilobytes in [_resident_kb(stat.with_name("status"))]
        ]
        return sum(sizes) * 1_024 / 1e6 if sizes else None


@contextmanager
def running_server(
    command: Sequence[str],
    *,
    log: Path,
    start_s: float,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[RunningServer]:
    """start_s: seconds that it may take until it can be asked. folder: where it is started. environment: of the server; None:
    this process's. check: called while it starts, and may raise, which ends the server. Raises NotRunnable, and ServerFailed
    for a server that ends or does not answer in time."""
    port = _free_port()
    words = [*map(str, command), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("a") as written:
        written.write(f"== {' '.join(words)}\n")
        written.flush()
        begins_at = written.tell()
        guard = subprocess.Popen(
            [sys.executable, "-P", server_guard.__file__, *words],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
            start_new_session=True,
            env=None if environment is None else dict(environment),
        )
    first_line, owned, said = "", pipe_of(guard.stdin), pipe_of(guard.stdout)
    try:
        first_line = said.readline().strip()
        if not first_line.isdigit():
            guard.wait()
            raise NotRunnable(first_line or "the server cannot be started")
        process_id, url = int(first_line), f"http://127.0.0.1:{port}"
        started_s = _wait(guard, url, start_s, check, lambda: cause_in(log, begins_at))
        yield RunningServer(url, process_id, started_s, guard)
    finally:
        _end(guard, owned, first_line)
        said.close()


def cause_in(log: Path, begins_at: int = 0) -> str:
    """What a log says of why the server ended: the last exception that names its cause, with the indented lines of its message,
    else the last line; "" for an empty log. begins_at: where the server's part of the log begins, in bytes."""
    with log.open("rb") as content:
        content.seek(begins_at)
        lines = [_printable(_PROCESS.sub("", line)) for line in content.read().decode(errors="replace").splitlines()]
    for place in reversed(range(len(lines))):
        if (exception := _EXCEPTION.search(lines[place])) and _ELSEWHERE not in lines[place]:
            message = takewhile(lambda line: line.startswith("  "), lines[place + 1 :])
            return " ".join([exception[0].strip(), *(line.strip() for line in message)])[:LONGEST_LINE]
    return next((line.strip()[:LONGEST_LINE] for line in reversed(lines) if line.strip()), "")


def _wait(guard: subprocess.Popen, url: str, start_s: float, check: Callable[[], None], cause: Callable[[], str]) -> float:
    began_s = time.monotonic()
    while time.monotonic() - began_s < start_s:
        check()
        if guard.poll() is not None:
            raise ServerFailed(f"it ended with exit code {guard.returncode} before it could be asked{_quoted(cause())}")
        if _is_up(url):
            return time.monotonic() - began_s
        time.sleep(0.2)
    raise ServerFailed(f"it could not be asked after {start_s:g} s{_quoted(cause())}")


def _quoted(line: str) -> str:
    return f": {line}" if line else ", and wrote nothing"


def _is_up(url: str) -> bool:
    """Whether the server says that it can be asked. No proxy is used."""
    try:
        return urllib3.request("GET", f"{url}/health", retries=False, timeout=5).status == 200
    except urllib3.exceptions.HTTPError:
        return False


def _end(guard: subprocess.Popen[str], owned: IO[str], first_line: str) -> None:
    """Closes the pipe, at which the guard ends the server. A guard that does not is killed, and its server with it."""
    with suppress(OSError):
        owned.close()
    try:
        guard.wait(timeout=3 * server_guard.GRACE_S)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
        if first_line.isdigit():
            with suppress(ProcessLookupError):
                os.killpg(int(first_line), signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _group_of(stat: Path) -> int | None:
    """The process group in a /proc/N/stat; None if the process has ended."""
    try:
        return int(stat.read_text().rpartition(")")[2].split()[2])
    except (OSError, IndexError, ValueError):
        return None


def _resident_kb(status: Path) -> int:
    try:
        return next((int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmRSS:")), 0)
    except OSError:
        return 0


def _printable(line: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in line)
