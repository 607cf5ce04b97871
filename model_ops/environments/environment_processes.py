"""Environments or agents of a user's file, each in a process that can be killed: one that loops, crashes or forks ends alone.

    with EnvironmentProcesses(Path("envs.py"), "Shop", seconds=10) as processes:
        about = processes.about                                # tools, and which methods there are
        shop = processes.begin()
        processes.ask_all([(shop, {"reset": row})])            # [Told("three items")]
        shop.end()

The file is loaded once. Each environment is a fork of the process that loaded it, so it costs milliseconds, and what the file
imported is in memory once. environment_child.py has the requests.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
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
AT_ONCE = 16
"""Requests at a time. Tools often wait for a server, so the number of cores is no bound."""


@dataclass(frozen=True)
class Told:
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
        self._held: list[ForkedEnvironment] = []

    def __enter__(self) -> EnvironmentProcesses:
        """Raises ModelError for a file that cannot be loaded."""
        self._control, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                self._command, stdin=other, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
        loaded = Child(self._control.fileno())
        self._first_line(loaded)
        return self

    def __exit__(self, *_: object) -> None:
        while self._held:
            self._held.pop().end()
        self._control.close()
        self._process.kill()
        self._process.wait()

    def begin(self) -> ForkedEnvironment:
        """A new environment, whose object is made at its first request. Raises ModelError if the file's process is gone."""
        try:
            found = ForkedEnvironment(self._control)
        except OSError as error:
            raise ModelError(f"the {self.name} cannot be started any more: its process ended") from error
        self._held.append(found)
        found.process_id, found.ready = self._first_line(found), True
        return found

    @cached_property
    def about(self) -> AboutEnvironment:
        """Raises ModelError for tools that cannot be described, and for a class that cannot be made."""
        probe = self.begin()
        (told,) = self.ask_all([(probe, {"about": {}})])
        self.end(probe)
        if told.problem:
            raise ModelError(f"the {self.name} cannot be made: it {told.problem}")
        return AboutEnvironment(**told.said)

    def end(self, environment: ForkedEnvironment) -> None:
        """Ends one environment. May be called twice."""
        if environment in self._held:
            self._held.remove(environment)
            environment.end()

    def ask_all(
        self,
        asked: Sequence[tuple[ForkedEnvironment, dict[str, Any]]],
        at_once: int = AT_ONCE,
        on_told: Callable[[int, Told], None] = lambda place, told: None,
    ) -> list[Told]:
        """The answers, in order. at_once: requests at a time. on_told: called with each answer and its place, as it comes. An
        environment that has a problem is ended. Raises ModelError for a class that cannot be used."""
        lines = [json.dumps(request, default=str).encode() + b"\n" for _, request in asked]
        found: dict[int, Told] = {}
        waiting, busy = deque(range(len(asked))), list[Child]()
        while len(found) < len(asked):
            while waiting and len(busy) < at_once:
                environment, request = asked[place := waiting.popleft()]
                environment.ask(place, lines[place], self.seconds * max(1, len(request.get("calls", ()))))
                busy.append(environment)
            for child, reply in heard(busy, self.seconds):
                if "refused" in reply:
                    raise ModelError(f"the {self.name} {reply['refused']}")
                place = child.request
                found[place] = Told(reply.get("said"), reply.get("problem", ""))
                busy.remove(child)
                if "problem" in reply:
                    self.end(asked[place][0])
                on_told(place, found[place])
        return [found[place] for place in range(len(asked))]

    def _first_line(self, child: Child) -> Any:
        while not (replies := heard([child], self.seconds)):
            pass
        ((_, reply),) = replies
        if "refused" in reply:
            raise ModelError(f"the {self.name} {reply['refused']}")
        if "ready" not in reply:
            raise ModelError(f"the {self.name} has no process: {self._command[0]} must be Python 3.11 or newer, with pydantic")
        return reply["ready"]
