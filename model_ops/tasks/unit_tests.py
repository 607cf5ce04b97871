"""Task `unit_tests`: the answer's Python code passes the item's tests, as in HumanEval (Chen et al. 2021, arXiv 2107.03374).

The code is the last fenced block of the answer that defines the function, else its last block, else the whole answer; without
the function it continues the item's prompt. Tests define `check`, are assert statements, or functions `test_...`. They run in
a sandbox (sandbox_child.py), in two processes, with Python's own library alone."""

import ast
import atexit
import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from model_ops.jobs import ModelError
from model_ops.tasks.code_fences import code_blocks
from model_ops.tasks.item import Item

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
    prepared: what tests and solution share, as the helper functions of a prompt; tests use its functions but for `entry_point`,
    and the solution's classes. check: the test defines check(candidate). Raises ModelError as `isolation` does."""
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


PYTHON = re.compile(r"(?:(?:python|py)[\d.]*)?")
RUNNING = ast.Expr | ast.Assert | ast.For | ast.While | ast.If | ast.With | ast.Try
"""Statements that may run a test. None stands in an assignment."""
OF_PYTEST = {f"{name}{what}" for name in ("setup", "teardown") for what in ("", "_module", "_function", "_method", "_class")}
"""Functions that only pytest calls."""


class UnitTestsItem(Item):
    """A programming task with tests."""

    kind: Literal["unit_tests"] = "unit_tests"
    code: str = ""
    """The beginning that an answer may continue; "" for a task in words."""
    test: str
    """Python source of the tests."""
    entry_point: str = ""


def run_unit_tests(item: UnitTestsItem, text: str, seconds: float, memory_mb: int) -> SandboxResult:
    """Whether the answer passes. Raises ModelError if this system cannot lock a process down; then nothing was run."""
    blocks = [block.code for block in code_blocks(text) if PYTHON.fullmatch(block.language)] or [text]
    defines = re.compile(rf"^(async\s+)?def\s+{re.escape(item.entry_point)}\b" if item.entry_point else r"(?!)", re.MULTILINE)
    answer = next((block for block in reversed(blocks) if defines.search(block)), blocks[-1])
    whole = not item.code or defines.search(answer) is not None
    return run_tests(
        f"{_imports(item.code)}\n{answer}" if whole else f"{item.code}{answer}",
        item.test,
        seconds=seconds,
        memory_mb=memory_mb,
        prepared=item.code if _compiles(item.code) else _imports(item.code),
        entry_point=item.entry_point,
        check=bool(item.entry_point) and re.search(r"^def check\b", item.test, re.MULTILINE) is not None,
    )


def running_tests(test: str, entry_point: str) -> str:
    """The tests, with calls of functions `test_...` that nothing calls. Raises ValueError for tests that are not Python, or
    that could not tell a right answer from a wrong one, because nothing runs them, or gives them what they need."""
    try:
        body = ast.parse(test).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"has tests that are not Python (line {getattr(error, 'lineno', None) or 1})") from error
    if absent := sorted({name for each in body for name in _imported(each)} - sys.stdlib_module_names):
        raise ValueError(
            f"has tests that import {', '.join(absent)}, which the sandbox does not have: it holds Python's own library and "
            "the answer, whose names need no import"
        )
    functions = {each.name: each for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    if (check := functions.get("check")) is not None and entry_point:
        if isinstance(check, ast.AsyncFunctionDef):
            raise ValueError("has an async `check`, which nothing awaits: make it a plain function")
        return test
    statements = [each for each in body if isinstance(each, RUNNING) and not _is_guarded(each)]
    called = {node.id for each in statements for node in ast.walk(each) if isinstance(node, ast.Name)}
    names = [name for name in functions if name.startswith("test") and name not in called]
    for name in names:
        given = functions[name].args
        needed = len(given.posonlyargs + given.args) - len(given.defaults) + given.kw_defaults.count(None)
        if needed or isinstance(functions[name], ast.AsyncFunctionDef):
            raise ValueError(f"has a test {name} that is async or takes parameters (as of fixtures), which nothing gives")
    classes = {each.name for each in body if isinstance(each, ast.ClassDef) and _holds_tests(each)}
    if unused := sorted((classes | OF_PYTEST & functions.keys()) - called):
        raise ValueError(f"has {unused[0]}, which only pytest or unittest runs: write functions test_... that stand alone")
    if not names and not statements:
        raise ValueError(
            "has tests that nothing runs: write assert statements, functions test_... without parameters, or `check` with an "
            "`entry_point`"
        )
    return "\n".join([test, "", *(f"{name}()" for name in names)]) if names else test


def _imported(statement: ast.stmt) -> set[str]:
    """Modules that a statement imports; none where it tries to."""
    if isinstance(statement, ast.Try):
        return set()
    nodes = list(ast.walk(statement))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in plain | named}


def _holds_tests(statement: ast.ClassDef) -> bool:
    return any(
        isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test") for each in statement.body
    )


def _is_guarded(statement: ast.stmt) -> bool:
    """Whether nothing of it runs here: `if __name__ == ...`, or a docstring."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test)


def _compiles(code: str) -> bool:
    try:
        compile(code, "prompt", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _imports(code: str) -> str:
    """The import lines at the start of a prompt, which an answer may leave out."""
    return "\n".join(line for line in code.splitlines() if re.match(r"(from\s+\S+\s+)?import\s", line))
