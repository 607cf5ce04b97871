"""Runs a program of unit tests in a locked-down subprocess.

    outcome = run_program(source, seconds=10, memory_mb=512)     # Outcome(passed=True, isolation="namespaces, landlock, ...")

The subprocess has an empty environment, a temporary folder of its own, no standard input, and limits of time, memory, files and
processes; sandbox_child.py lists its layers. The network is cut off by a network namespace where the kernel allows one to an
unprivileged process, and by refused sockets everywhere. The program's output is not read.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from model_ops.errors import ModelError

CHILD = Path(__file__).with_name("sandbox_child.py")
STARTING_SECONDS = 5
"""Wall-clock seconds allowed for starting Python, besides the program's own."""


@dataclass(frozen=True)
class Outcome:
    """Result of one program."""

    passed: bool
    """Whether the program ran to its end without an exception."""
    isolation: str
    """Layers of isolation around the program."""
    timed_out: bool = False


def run_program(source: str, seconds: float, memory_mb: int) -> Outcome:
    """Runs Python source. A program that loops, forks, exits early or uses too much has not passed.

    Raises ModelError if this system cannot lock a subprocess down; then nothing was run.
    """
    if sys.platform != "linux":
        raise ModelError("unit tests of answers run only on Linux, which can lock a subprocess down; leave the suite out of "
                         "evals")
    with tempfile.TemporaryDirectory(prefix="millrace-tests-") as folder:
        program = Path(folder) / "answer.py"
        program.write_text(source, encoding="utf-8", errors="replace")
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(CHILD), str(program), folder, str(seconds), str(memory_mb << 20),
                 str(writing)],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(writing,),
                env={"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}, start_new_session=True)
        finally:
            os.close(writing)
        timed_out = False
        try:
            process.wait(seconds + STARTING_SECONDS)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read(4096).decode(errors="replace").splitlines()
    if not said or not said[0].startswith("isolated by "):
        if timed_out:
            return Outcome(False, "", True)
        raise ModelError("this system lets no process lock itself down (seccomp is missing), so unit tests of answers were not "
                         "run; run the evaluation on another machine, or leave the suite out of evals")
    return Outcome(not timed_out and said[1:2] == ["passed"], said[0].removeprefix("isolated by "), timed_out)
