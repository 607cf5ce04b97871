"""Kills processes of a simulated week at random: the server, the daemon, a training worker.

    kills = Kills(seed, days=7, mark=str(folder))                    # the plan is made at once, from the seed
    kills.while_asked(day=2, share=0.4)                              # called often: kills what is due
    kills.at_night(day=3)
    kills.done                                                       # [{"kind": "server", "day": 2, "process": "..."}]

SIGKILL each time. server: a process of vLLM (its API, its engine or the engine's worker), while people ask. daemon: Dagster's
daemon of `millrace up`, while people ask. worker: the process that trains, some seconds after it was started, at night or by
day. Whose they are is read from their command lines and environments, so that no process of anybody else is killed.
"""

import random
import time
from dataclasses import dataclass
from typing import Any, Literal

import psutil

Kind = Literal["server", "daemon", "worker"]
LOOKS_EVERY_S = 1.0
ANCESTORS = 3
LATEST_S = 40.0
"""A worker is killed at most so long after it was started: later most of its work is done."""


@dataclass(frozen=True)
class Planned:
    """share: of the day's requests that are over then."""

    kind: Kind
    day: int
    share: float


class Kills:
    """mark: a text in the command line or the environment of each process that may be killed."""

    def __init__(self, seed: int, days: int, mark: str, server: int = 2, daemon: int = 2, worker: int = 1):
        draw = random.Random(seed)
        self._mark, self._draw = mark, draw
        self.planned = sorted(
            (
                Planned(kind, draw.randint(1, days - 1), draw.uniform(0.1, 0.8))
                for kind, count in (("server", server), ("daemon", daemon))
                for _ in range(count)
            ),
            key=lambda each: (each.day, each.share),
        )
        self.workers_left, self._after_s = worker, draw.uniform(5, LATEST_S)
        self._seen: dict[int, float] = {}
        self._looks_at = 0.0
        self.done: list[dict[str, Any]] = []

    def while_asked(self, day: int, share: float) -> None:
        """share: of the day's requests that are over."""
        for each in [each for each in self.planned if (each.day, each.share) <= (day, share)]:
            self.planned.remove(each)
            self._kill(each.kind, day, self._draw.choice(found) if (found := self._found(each.kind)) else None)
        self.at_night(day)

    def at_night(self, day: int) -> None:
        """Kills a worker that was seen for long enough, as often as is planned."""
        if not self.workers_left or time.monotonic() < self._looks_at:
            return
        self._looks_at = time.monotonic() + LOOKS_EVERY_S
        for process in self._found("worker"):
            if time.monotonic() - self._seen.setdefault(process.pid, time.monotonic()) > self._after_s:
                self.workers_left, self._after_s = self.workers_left - 1, self._draw.uniform(5, LATEST_S)
                self._kill("worker", day, process)
                return

    def count(self, kind: Kind) -> int:
        return sum(each["kind"] == kind and each["process"] is not None for each in self.done)

    def _kill(self, kind: Kind, day: int, process: psutil.Process | None) -> None:
        """None: there was none to kill."""
        killed = None
        if process is not None:
            killed = _role(process)
            process.kill()
        self.done.append({"kind": kind, "day": day, "process": killed})
        print(f"day {day}: {kind} killed ({killed})", flush=True)

    def _found(self, kind: Kind) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if _role(process) in _ROLES[kind] and self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        """By the process, or by whose child it is: vLLM's engine writes its name over its environment."""
        try:
            return any(
                self._mark in text
                for each in (process, *process.parents()[:ANCESTORS])
                for text in (*each.cmdline(), *each.environ().values())
            )
        except psutil.Error:
            return False


_ROLES: dict[Kind, tuple[str, ...]] = {"server": ("api", "engine"), "daemon": ("daemon",), "worker": ("worker",)}


def _role(process: psutil.Process) -> str:
    """What a process is, by its command line; "" for all others."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return ""
    if words and words[0].startswith("VLLM::"):
        return "engine"
    if "vllm.entrypoints.cli.main" in words and "serve" in words and "python" in words[0]:
        return "api"
    if "pipelines.running.daemon" in words and "-m" in words:
        return "daemon"
    return "worker" if "model_ops.worker" in words and "-m" in words else ""
