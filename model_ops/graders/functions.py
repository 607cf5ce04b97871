"""Runs a grading function of a file in worker processes that can be killed: one that loops, crashes or forks ends alone.

The function is given in the forms of function_child.py. A call has `seconds` for each answer that it grades; a process that
exceeds it is ended with all that it started, and another one takes its place. Calls of an async function wait in one process,
all at once. If it is lost, the calls that it had not answered are made again, each alone, so that one harms no other; where it
was late, because the function blocks instead of waiting, so are all later ones.
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
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from model_ops.graders.completion_form import Form, completion_form
from model_ops.graders.grade import AskedGroup, Grade, GradedAnswer, grades_of
from model_ops.jobs import ModelError
from model_ops.machine import pipe_of

CHILD = Path(__file__).with_name("function_child.py")
STARTING_SECONDS = 120.0
"""Most seconds in which a file is loaded: it may import torch on a busy machine."""
LOOK_SECONDS = 1.0
"""Seconds after which clocks are looked at again: those of agents stand still while the model answers."""
WORKERS = 4
"""Processes. Functions often wait for a server, so the number of cores is no bound."""
Worker = TypeVar("Worker", bound="Child")
GRACE_SECONDS = 5.0
"""Of a process whose calls wait at once, which looks at its clock itself."""


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

    def replies(self) -> list[dict[str, Any]]:
        """The lines that it wrote. Raises EOFError where it has ended."""
        part = os.read(self.output, 1 << 16)
        if not part:
            raise EOFError
        *lines, self._read = (self._read + part).split(b"\n")
        return [json.loads(line) for line in lines]


def heard(children: Sequence[Worker]) -> list[tuple[Worker, dict[str, Any]]]:
    """The next replies of some children, also in the name of processes that have ended or are late; none after LOOK_SECONDS."""
    pause = min(child.until_s for child in children) - time.monotonic()
    readable = select.select([child.output for child in children], [], [], min(max(0.0, pause), LOOK_SECONDS))[0]
    replies_of: list[tuple[Worker, dict[str, Any]]] = []
    for child in children:
        problem = f"took longer than {child.limit_s:g} s" if time.monotonic() > child.until_s else ""
        if child.output in readable:
            try:
                replies, problem = child.replies(), ""
                replies_of += [(child, reply) for reply in replies]
            except (EOFError, ConnectionError):
                problem = "ended its process"
        if problem:
            lost = {"problem": problem, "spent": True} if child.ready else {"refused": f"cannot be loaded: it {problem}"}
            replies_of.append((child, lost))
    return replies_of


class _Started(Child):
    """A process that was started with a command, which talks through pipes."""

    def __init__(self, command: Sequence[str]):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._input, self._output = pipe_of(self.process.stdin), pipe_of(self.process.stdout)
        super().__init__(self._output.fileno())

    def write(self, line: bytes) -> None:
        self._input.write(line)
        self._input.flush()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self._input, self._output):
            with suppress(BrokenPipeError):
                pipe.close()


class FunctionWorkers:
    """Processes that hold one function. To be used by the thread that made it, whose end ends them."""

    def __init__(self, path: Path, function: str, seconds: float, completions: Form | None = None):
        """completions: what TRL's form is given; None: what the function reads. Raises ModelError for a file that is not
        there."""
        self.name, self.seconds = f"{path.name}:{function}", seconds
        if not path.is_file():
            raise ModelError(f"the grader {self.name} has no file: there is no {path}")
        self.form = completions or completion_form(path, function)
        self._command = (sys.executable, "-P", str(CHILD), str(path.resolve()), function, self.form)
        self._children: list[_Started] = []
        self.whole = self._waits = self._blocks = False
        """Once it is opened. whole: whether a call has all answers to a prompt, as in TRL's form. _waits: whether calls wait at
        once, unless the function blocks."""

    def __enter__(self) -> FunctionWorkers:
        """Raises ModelError if the function cannot be loaded."""
        self._children.append(child := _Started(self._command))
        try:
            while not child.ready:
                for _, reply in heard([child]):
                    self._take(child, reply)
        except ModelError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        while self._children:
            self._children.pop().end()

    def grade(self, groups: Sequence[AskedGroup]) -> list[list[Grade]]:
        """Raises ModelError if the function asks for what no row brings."""
        calls = [
            _call(group, answers)
            for group in groups
            for answers in ([group.answers] if self.whole else [[each] for each in group.answers])
            if answers
        ]
        said = chain.from_iterable(self._replies(calls))
        return [grades_of([next(said) for _ in group.answers]) for group in groups]

    def _take(self, child: _Started, reply: dict[str, Any]) -> None:
        """A first line. Raises ModelError where it refuses the function."""
        if "refused" in reply:
            raise ModelError(f"the grader {self.name} {reply['refused']}")
        self.whole, self._waits = reply["whole"], self._waits or reply["waits"]
        child.ready, child.until_s = True, math.inf

    def _replies(self, calls: list[dict[str, Any]]) -> list[list[Any]]:
        """What was said of each answer of each call: a value, or a Grade with a problem."""
        said: dict[int, list[Any]] = {}
        begun, batches = 0, [[place] for place in range(len(calls))]
        if self._waits and not self._blocks:
            batches = [[*range(len(calls))]]
        while len(said) < len(calls):
            busy = sum(child.request is not None for child in self._children)
            while len(self._children) < min(WORKERS, busy + len(batches) - begun):
                self._children.append(_Started(self._command))
            for child in self._children:
                if child.ready and child.request is None and begun < len(batches):
                    self._ask(child, begun, [{"call": place, **calls[place]} for place in batches[begun]])
                    begun += 1
            for child, reply in heard(self._children):
                if "refused" in reply or not child.ready:
                    self._take(child, reply)
                    continue
                left = [] if child.request is None else [each for each in batches[child.request] if each not in said]
                if reply.get("waits") and not self._waits:  # a wrapper did not show it
                    self._waits, rest = True, [*chain.from_iterable(batches[begun:])]
                    batches[begun:] = [rest] if rest else []
                if "call" not in reply and len(left) > 1:
                    self._blocks |= "took longer" in reply["problem"]
                    batches += [[each] for each in left]
                elif left:
                    ended = reply.get("call", left[0])
                    problem = [Grade(problem=reply["problem"])] * len(calls[ended]["answers"]) if "problem" in reply else []
                    said[ended] = problem or reply["said"]
                    left.remove(ended)
                    if left:
                        child.until_s = time.monotonic() + child.limit_s + GRACE_SECONDS
                        continue
                child.request, child.until_s = None, math.inf
                if "spent" in reply:
                    self._children.remove(child)
                    child.end()
        return [said[place] for place in range(len(calls))]

    def _ask(self, child: _Started, request: int, calls: list[dict[str, Any]]) -> None:
        seconds = self.seconds * max(len(call["answers"]) for call in calls)
        child.ask(request, json.dumps({"seconds": seconds, "calls": calls}, default=str).encode() + b"\n", seconds)
        child.until_s += GRACE_SECONDS if len(calls) > 1 else 0.0


def _call(group: AskedGroup, answers: Sequence[GradedAnswer]) -> dict[str, Any]:
    return {
        "prompt": group.messages,
        "columns": dict(group.columns),
        "training": group.training,
        "answers": [{"answer": each.content, "text": each.text, "message": each.message, "ids": each.ids} for each in answers],
    }
