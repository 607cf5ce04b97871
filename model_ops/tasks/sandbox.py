"""Runs foreign Python code in processes that are locked down, and says what its tests found.

    run_tests("def f(x): return 2 * x", "assert f(2) == 4", seconds=10, memory_mb=512)     # SandboxResult(passed=True, ...)
    call_function(source, "grade", [sample, item], seconds=10, memory_mb=512)              # what grade(sample, item) returns
    isolation()                                         # "own root, namespaces, other user, landlock 7, seccomp"

sandbox_child.py says how processes are locked down, two_sides.py why an answer cannot say that it passed. One server for this
process is started at the first use, and forks for each program, so that a program costs milliseconds.
"""

import atexit
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from model_ops.jobs import ModelError

CHILD = Path(__file__).with_name("sandbox_child.py")
SPARE_SECONDS = 30
"""Wall-clock seconds after a job's own, in which the supervisor ends it on a busy machine."""
TRIES = 2


@dataclass(frozen=True)
class SandboxResult:
    """Result of one program."""

    passed: bool
    """Whether its tests ran to their end without an exception."""
    isolation: str
    """Layers of isolation around the program."""
    timed_out: bool = False


class FunctionFailure(Exception):
    """A function in the sandbox returned nothing. The text is fixed, without words of its input."""


def run_tests(
    solution: str, test: str, *, seconds: float, memory_mb: int, prepared: str = "", entry_point: str = "", check: bool = False
) -> SandboxResult:
    """Whether what `solution` defines passes `test`. A solution that loops, forks, exits early or uses too much has not.

    prepared: what tests and solution share, as the helper functions of a prompt; tests use its functions but for
    `entry_point`, and the solution's classes. check: the test defines check(candidate). Raises ModelError as `isolation` does.
    """
    asked = {"prepared": prepared, "test": test, "entry_point": entry_point, "calls_check": check}
    said, reply = _run(asked, solution, seconds, memory_mb)
    return SandboxResult(said is not None and "problem" not in said, ", ".join(reply["layers"]), reply["ended"] == "time")


def call_function(source: str, function: str, args: list[Any], *, seconds: float, memory_mb: int) -> Any:
    """What the function of `source` returns, as JSON. Raises FunctionFailure; ModelError as `isolation` does."""
    said, reply = _run({"source": source, "function": function, "args": args}, "", seconds, memory_mb)
    if said is None:
        raise FunctionFailure(f"took longer than {seconds:g} s" if reply["ended"] == "time" else "ended its process")
    if "problem" in said:
        raise FunctionFailure(said["problem"])
    return said["value"]


@cache
def isolation() -> str:
    """Layers around programs on this machine. Raises ModelError if it cannot lock a process down; then nothing is ever run."""
    return run_tests("", "pass", seconds=60, memory_mb=256).isolation


def _run(asked: dict[str, Any], answer: str, seconds: float, memory_mb: int) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """(what the tests' process said, None for nothing; the supervisor's reply)."""
    if sys.platform != "linux":
        raise ModelError(
            "foreign code runs only on Linux, which can lock a process down; use no unit tests and no python graders"
        )
    word = secrets.token_hex(16)
    parts = json.dumps({"tester": {**asked, "word": word}, "answerer": answer}).encode()
    for _ in range(TRIES):
        job = {"seconds": seconds, "memory": memory_mb << 20}
        reply = _SERVER.ask(json.dumps(job).encode(), b"%d\n%b" % (len(parts), parts), seconds + SPARE_SECONDS)
        if reply is not None:
            break
    else:
        raise ModelError("the sandbox for foreign code gave no reply, twice; see if memory is short, and run again")
    if reply["layers"] is None:
        raise ModelError(
            "this machine cannot lock a process down (no Landlock or seccomp: a Linux kernel before 5.13, or a container "
            "that forbids them), so foreign code was not run; use another machine, or no unit tests and no python graders"
        )
    said, _, rest = reply["said"].partition("\n")
    return json.loads(rest) if said == word and rest else None, reply


class _Server:
    """The process that forks for each job. Threads of one process share it; a forked process starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._process: subprocess.Popen[bytes]
        self._control: socket.socket

    def ask(self, job: bytes, parts: bytes, seconds: float) -> dict[str, Any] | None:
        """The supervisor's reply; None if there was none, after which another server is used."""
        own, theirs = socket.socketpair()
        with own:
            with theirs:
                control = self._send(job, theirs.fileno())
            try:
                own.settimeout(seconds)
                own.sendall(parts)
                with own.makefile("rb") as replied:
                    return json.loads(replied.read())
            except (OSError, ValueError):
                self._leave(control)
                return None

    def _send(self, job: bytes, place: int) -> socket.socket:
        with self._lock:
            if self._owner != os.getpid() or self._process.poll() is not None:
                self._start()
            with contextlib.suppress(OSError):  # it has ended: no reply will come
                socket.send_fds(self._control, [job], [place])
            return self._control

    def _start(self) -> None:
        self._control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(CHILD), str(theirs.fileno())],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={"TMPDIR": tempfile.gettempdir()},
                start_new_session=True,
            )
        self._owner = os.getpid()

    def _leave(self, control: socket.socket) -> None:
        """Ends the server of that control socket, if it is still the one that is used."""
        with self._lock:
            if self._owner == os.getpid() and self._control is control:
                self.end()

    def end(self) -> None:
        """Closing its control socket ends it; supervisors end when the sockets of their jobs close."""
        if self._owner == os.getpid():
            self._control.close()
            self._process.kill()
            self._process.wait()
            self._owner = 0


_SERVER = _Server()
atexit.register(_SERVER.end)
