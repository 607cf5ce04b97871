"""Environments or agents of a user's file, each in a process that can be killed: one that loops, crashes or forks ends alone.

    with EnvironmentProcesses(Path("envs.py"), "Shop", seconds=10) as processes:
        about = processes.about                                # tools, and which methods there are
        shop = processes.begin()
        processes.ask_all([(shop, {"reset": row})])            # [EnvironmentReply("three items")]
        shop.end()

The file is loaded once. Each environment is a fork of the process that loaded it, so it costs milliseconds, and what the file
imported is in memory once. environment_child.py has the requests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from model_ops.graders import Child, heard
from model_ops.jobs import ModelError

CHILD = Path(__file__).with_name("environment_child.py")
MAKING_SECONDS = 60.0
"""Most seconds in which an object is made and described, or `seconds` where that is more: it may import on a busy machine."""
AT_ONCE = 16
"""Requests at a time. Tools often wait for a server, so the number of cores is no bound."""


@dataclass(frozen=True)
class EnvironmentReply:
    """What an environment answered; or why it did not, in a fixed text without words of the user."""

    said: Any = None
    problem: str = ""


@dataclass(frozen=True)
class AboutEnvironment:
    """What a file's environments are like."""

    tools: list[dict[str, Any]]
    """As OpenAI's API describes them."""
    replies: bool
    """Whether it plays a user who replies."""
    rewards: bool
    """Whether it grades attempts."""


class ForkedEnvironment(Child):
    """The process of one environment."""

    def __init__(self, control: socket.socket):
        self._channel, other = socket.socketpair()
        with other:
            socket.send_fds(control, [b"f"], [other.fileno()])
        super().__init__(self._channel.fileno())
        self.process_id: int | None = None
        self.is_constructed = False

    def write(self, line: bytes) -> None:
        self._channel.sendall(line)

    def kill(self) -> None:
        """Kills it with all that it started. May be called twice, and by any thread."""
        process, self.process_id = self.process_id, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)

    def end(self) -> None:
        """Kills it and closes its channel. May be called twice."""
        self.kill()
        self._channel.close()


class EnvironmentProcesses:
    """To be used by the thread that made it, whose end ends them."""

    def __init__(self, path: Path, name: str, seconds: float, kind: str = "environment", python: str | None = None):
        """seconds: most of one call. kind: what it is, for messages. python: interpreter that runs the file, this one if None.
        Raises ModelError for a file that is not there."""
        self.name, self.seconds = f"{kind} {path.name}:{name}", seconds
        if not path.is_file():
            raise ModelError(f"the {self.name} has no file: there is no {path}")
        self._command = (python or sys.executable, "-P", str(CHILD), str(path.resolve()), name)
        self._open: list[ForkedEnvironment] = []

    def __enter__(self) -> EnvironmentProcesses:
        """Raises ModelError for a file that cannot be loaded."""
        self._control, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                self._command,
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        loaded = Child(self._control.fileno())
        loaded.limit_s = max(loaded.limit_s, self.seconds)
        loaded.until_s = time.monotonic() + loaded.limit_s
        self._first_line(loaded)
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._open.pop().end()
        self._control.close()
        self._process.kill()
        self._process.wait()

    def begin(self) -> ForkedEnvironment:
        """A new environment, whose object is made at its first request. Raises ModelError if the file's process is gone."""
        try:
            environment = ForkedEnvironment(self._control)
        except OSError as error:
            raise ModelError(f"the {self.name} cannot be started any more: its process ended") from error
        self._open.append(environment)
        environment.process_id, environment.ready = self._first_line(environment), True
        return environment

    @cached_property
    def about(self) -> AboutEnvironment:
        """Raises ModelError for tools that cannot be described, and for a class that cannot be made."""
        probe = self.begin()
        (reply,) = self.ask_all([(probe, {"about": {}})])
        self.end(probe)
        if reply.problem:
            raise ModelError(f"the {self.name} cannot be made: it {reply.problem}{_remedy(reply.problem)}")
        return AboutEnvironment(**reply.said)

    def end(self, environment: ForkedEnvironment) -> None:
        """Ends one environment. May be called twice."""
        if environment in self._open:
            self._open.remove(environment)
            environment.end()

    def ask_all(
        self,
        asked: Sequence[tuple[ForkedEnvironment, dict[str, Any]]],
        at_once: int = AT_ONCE,
        on_reply: Callable[[int, EnvironmentReply], None] = lambda place, reply: None,
    ) -> list[EnvironmentReply]:
        """The answers, in order. at_once: requests at a time. on_reply: called with each answer and its place, as it comes. An
        environment that has a problem is ended. Raises ModelError for a class that cannot be used."""
        lines = [json.dumps(request, default=str).encode() + b"\n" for _, request in asked]
        replies: dict[int, EnvironmentReply] = {}
        waiting, busy = deque(range(len(asked))), list[Child]()

        def ask(place: int) -> None:
            environment, request = asked[place]
            if not environment.is_constructed and "run" not in request:
                seed = {"seed": request["seed"]} if "seed" in request else {}
                environment.ask(place, json.dumps({"make": {}, **seed}).encode() + b"\n", max(MAKING_SECONDS, self.seconds))
                return
            bound = max(MAKING_SECONDS, self.seconds) if "about" in request else self.seconds
            environment.ask(place, lines[place], bound * max(1, len(request.get("calls", ()))))
            environment.limit_s = bound

        while len(replies) < len(asked):
            while waiting and len(busy) < at_once:
                ask(begun := waiting.popleft())
                busy.append(asked[begun][0])
            for child, reply in heard(busy):
                if "refused" in reply:
                    raise ModelError(f"the {self.name} {reply['refused']}")
                if (place := child.request) is None:
                    raise RuntimeError(f"the {self.name} replied to no request: {reply}")
                environment, request = asked[place]
                if "said" in reply and not environment.is_constructed and "run" not in request:
                    environment.is_constructed = True
                    ask(place)
                    continue
                replies[place] = EnvironmentReply(reply.get("said"), reply.get("problem", ""))
                busy.remove(child)
                if "problem" in reply:
                    self.end(environment)
                on_reply(place, replies[place])
        return [replies[place] for place in range(len(asked))]

    def _first_line(self, child: Child) -> Any:
        while not (replies := heard([child])):
            pass
        ((_, reply),) = replies
        if "refused" in reply:
            raise ModelError(f"the {self.name} {reply['refused']}{_remedy(reply['refused'])}")
        if "ready" not in reply:
            raise ModelError(f"the {self.name} has no process: {self._command[0]} must be Python 3.11 or newer, with pydantic")
        return reply["ready"]


def _remedy(problem: str) -> str:
    return "; import or do less there, or raise rft.seconds above that" if "took longer" in problem else ""
