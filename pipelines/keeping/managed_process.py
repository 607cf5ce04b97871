"""One process that is started, watched and ended, and its log of bounded size. A guard (model_ops/serving/server_guard.py)
starts it in a session of its own, and ends the session when either process ends, however it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from model_ops.serving import server_guard
from resources.launching import stamp_of

ENDS_GROUP_S = 3 * server_guard.GRACE_S
"""Seconds that a guard has to end a session."""


class ManagedProcess:
    """held: file descriptors that stay open until everything of the process has ended: locks. log: None for this process's
    standard error."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        log: RotatedLog | None = None,
        held: Sequence[int] = (),
    ):
        self._command, self._environment, self._log, self._held = list(command), environment, log, tuple(held)
        self._guard: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.pid: int | None = None
        """Of the process, and number of its process group; None before it was started, and if it cannot be."""
        self.stamp = ""
        self._code: int | None = None

    def start(self) -> None:
        """Starts it, again if it has ended."""
        if self._log is not None:
            self._log.forget_lines()
        self._guard = subprocess.Popen(
            [sys.executable, "-P", server_guard.__file__, *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if self._log is None else subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=None if self._environment is None else dict(self._environment),
            start_new_session=True,
            pass_fds=self._held,
        )
        self._code = None
        first_line = self._guard.stdout.readline().strip() if self._guard.stdout else ""
        self.pid = int(first_line) if first_line.isdigit() else None
        self.stamp = stamp_of(self.pid) if self.pid else ""
        if self._log is not None and self.pid is None and first_line:
            self._log.write(first_line)
        if self._log is not None and self._guard.stderr is not None:
            self._reader = threading.Thread(target=_copy_lines, args=(self._guard.stderr, self._log), daemon=True)
            self._reader.start()

    @property
    def is_running(self) -> bool:
        return self._guard is not None and self.exit_code() is None

    def exit_code(self) -> int | None:
        """128 + N for a process that signal N ended; None while it runs."""
        if self._guard is None or self._code is not None:
            return self._code
        code = self._guard.poll()
        if code is None:
            return None
        if code < 0:
            self._end_group()  # the guard itself was killed, and its process lives on
            code = 128 - code
        if self._reader is not None:
            self._reader.join(timeout=1)  # its last lines say why it ended
        self._code = code
        return code

    def ask_to_stop(self) -> None:
        """SIGTERM to the process alone: it may end what it started in its own order."""
        if self.pid is not None and self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def stop(self, seconds: float) -> None:
        """Ends it and everything in its session. seconds: that it has after SIGTERM."""
        self.ask_to_stop()
        if self._guard is None:
            return
        try:
            self._guard.wait(timeout=max(0.0, seconds))
        except subprocess.TimeoutExpired:
            self._end_group()
        if self._guard.stdin is not None:
            with suppress(OSError):
                self._guard.stdin.close()  # at which the guard ends the session
        try:
            self._guard.wait(timeout=ENDS_GROUP_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        self.exit_code()
        if self._guard.stdout is not None:
            self._guard.stdout.close()
        self._guard = None

    def _end_group(self) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def _copy_lines(stream: IO[str], log: RotatedLog) -> None:
    with stream:
        for line in stream:
            log.write(line.rstrip("\n"))


MAX_BYTES = 10 << 20
KEPT = 5
"""Files of one log, the current one included."""
REMEMBERED = 20


class RotatedLog:
    """Several threads may write. max_bytes: size of one file."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES):
        self.path, self._max_bytes = path, max_bytes
        self._lines: deque[str] = deque(maxlen=REMEMBERED)
        self._lock = threading.Lock()

    def write(self, line: str) -> None:
        """Appends a line. A process whose log cannot be written goes on."""
        with self._lock:
            self._lines.append(line)
            with suppress(OSError):
                if self.path.exists() and self.path.stat().st_size + len(line) > self._max_bytes:
                    self._rotate()
                with self.path.open("a", encoding="utf-8", errors="replace") as file:
                    file.write(f"{line}\n")

    def last_lines(self) -> list[str]:
        """The newest lines that this object wrote, oldest first."""
        with self._lock:
            return list(self._lines)

    def forget_lines(self) -> None:
        """Lines written so far are no longer among the last ones: a new process writes from here on."""
        with self._lock:
            self._lines.clear()

    def _rotate(self) -> None:
        for number in range(KEPT - 2, -1, -1):
            older = self.path.with_name(f"{self.path.name}.{number}") if number else self.path
            if older.exists():
                older.replace(self.path.with_name(f"{self.path.name}.{number + 1}"))


CHECKPOINT_S = 130.0
"""Seconds that a run has: its worker takes up to 120 to save a checkpoint (LocalLauncher)."""


def end_launched_runs(session: int, hurried: Callable[[], bool] = lambda: False, seconds: float = CHECKPOINT_S) -> int:
    """Ends the runs in a session, and waits. Returns how many there were. seconds: that they have, until `hurried`."""
    runs = [process for process in psutil.process_iter() if _is_run(process, session)]
    for run in runs:
        with suppress(psutil.Error):
            run.terminate()
    left, until = runs, time.monotonic() + seconds
    while left and time.monotonic() < until and not hurried():
        _, left = psutil.wait_procs(left, timeout=0.5)
    return len(runs)


def _is_run(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and any("spawn_main" in word for word in process.cmdline())
    except (psutil.Error, OSError):
        return False
