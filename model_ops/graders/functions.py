"""Runs a grading function of a file in worker processes that can be killed: one that loops, crashes or forks ends alone.

    with FunctionWorkers(Path("rewards.py"), "grade", seconds=10) as workers:
        workers.grade(groups)                  # a list of Grade for each group, in order

The function is given in the forms of function_child.py. Each answer has its own time limit; a process that exceeds it is ended
with all that it started, and another one takes its place.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from model_ops.graders.grade import AskedGroup, Grade
from model_ops.jobs import ModelError

CHILD = Path(__file__).with_name("function_child.py")
STARTING_SECONDS = 120.0
"""Most seconds in which a file is loaded: it may import torch on a busy machine."""
LOOK_SECONDS = 1.0
"""Seconds after which clocks are looked at again: those of agents stand still while the model answers."""
WORKERS = 4
"""Processes. Functions often wait for a server, so the number of cores is no bound."""


class Child:
    """A process that runs code of a user, and the request that it works on. output: where it writes lines."""

    def __init__(self, output: int):
        self.output, self._read = output, b""
        self.request: int | None = None
        self.ready, self.until_s, self.limit_s = False, time.monotonic() + STARTING_SECONDS, STARTING_SECONDS
        """until_s: when it is late. limit_s: most seconds, for messages."""

    def write(self, line: bytes) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Kills the process with all of its group."""
        raise NotImplementedError

    def ask(self, request: int, line: bytes, seconds: float) -> None:
        self.request, self.until_s, self.limit_s = request, time.monotonic() + seconds, seconds
        with suppress(ConnectionError):  # it has ended, which its output says
            self.write(line)

    def reply(self) -> dict[str, Any] | None:
        """What it wrote; None for a part of it. Raises EOFError where it has ended."""
        part = os.read(self.output, 1 << 16)
        if not part:
            raise EOFError
        self._read += part
        if not self._read.endswith(b"\n"):
            return None
        line, self._read = self._read, b""
        return json.loads(line)


def heard(children: Sequence[Child]) -> list[tuple[Child, dict[str, Any]]]:
    """The next replies of some children, also in the name of processes that have ended or are late; none after LOOK_SECONDS."""
    pause = min(child.until_s for child in children) - time.monotonic()
    readable = select.select([child.output for child in children], [], [], min(max(0.0, pause), LOOK_SECONDS))[0]
    found: list[tuple[Child, dict[str, Any]]] = []
    for child in children:
        problem = f"took longer than {child.limit_s:g} s" if time.monotonic() > child.until_s else ""
        if child.output in readable:
            try:
                reply, problem = child.reply(), ""
                found += [] if reply is None else [(child, reply)]
            except (EOFError, ConnectionError):
                problem = "ended its process"
        if problem:
            lost = {"problem": problem, "spent": True} if child.ready else {"refused": f"cannot be loaded: it {problem}"}
            found.append((child, lost))
    return found


class _Started(Child):
    """A process that was started with a command, which talks through pipes."""

    def __init__(self, command: Sequence[str]):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        super().__init__(self.process.stdout.fileno())

    def write(self, line: bytes) -> None:
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()


class FunctionWorkers:
    """Processes that hold one function. To be used by the thread that made it, whose end ends them."""

    def __init__(self, path: Path, function: str, seconds: float):
        """Raises ModelError for a file that is not there."""
        self.name, self.seconds = f"{path.name}:{function}", seconds
        if not path.is_file():
            raise ModelError(f"the grader {self.name} has no file: there is no {path}")
        self._command = (sys.executable, "-P", str(CHILD), str(path.resolve()), function)
        self._children: list[_Started] = []

    def __enter__(self) -> FunctionWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        while self._children:
            self._children.pop().end()

    def grade(self, groups: Sequence[AskedGroup]) -> list[list[Grade]]:
        """Raises ModelError if the function cannot be loaded, or asks for what no row brings."""
        lines = [
            json.dumps(
                {
                    "prompt": group.messages,
                    "answer": answer.content,
                    "text": answer.text,
                    "message": answer.message,
                    "columns": dict(group.columns),
                },
                default=str,
            )
            for group in groups
            for answer in group.answers
        ]
        grades = iter(self._grade_each([f"{line}\n".encode() for line in lines]))
        return [[next(grades) for _ in group.answers] for group in groups]

    def _grade_each(self, lines: list[bytes]) -> list[Grade]:
        found: dict[int, Grade] = {}
        waiting = deque(range(len(lines)))
        while len(found) < len(lines):
            while len(self._children) < min(WORKERS, len(lines)):
                self._children.append(_Started(self._command))
            for child in self._children:
                if child.ready and child.request is None and waiting:
                    child.ask(request := waiting.popleft(), lines[request], self.seconds)
            for child, reply in heard(self._children):
                if "refused" in reply:
                    raise ModelError(f"the grader {self.name} {reply['refused']}")
                if child.request is not None:
                    found[child.request] = Grade(problem=reply["problem"]) if "problem" in reply else Grade.of(reply["said"])
                child.ready, child.request, child.until_s = True, None, math.inf
                if "spent" in reply:
                    self._children.remove(child)
                    child.end()
        return [found[place] for place in range(len(lines))]
