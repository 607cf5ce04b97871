"""What tests say of processes that failed, and of what did not happen in time.

assert done.returncode == 0, process_report(done)      # millrace run x.yaml: exit code 1: no such file: x.yaml
until(lambda: server.ready, seconds=15)                # not within 15 s: until(lambda: server.ready, seconds=15)
"""

import inspect
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest


def process_report(done: subprocess.CompletedProcess | subprocess.CalledProcessError) -> str:
    """How a process ended: its command, exit code and last words in one line, then all that it wrote."""
    words = done.args if not isinstance(done, subprocess.CalledProcessError) else done.cmd
    command = " ".join((words if isinstance(words, str) else " ".join(map(str, words))).split())
    out, error = (
        text.decode(errors="replace") if isinstance(text, bytes) else text or "" for text in (done.stdout, done.stderr)
    )
    last = next(reversed((error.strip() or out.strip()).splitlines()), "it wrote nothing")
    return f"{command if len(command) < 160 else command[:160] + ' ...'}: exit code {done.returncode}: {last}\n{out[-3000:]}\n{error[-3000:]}"


def until(condition: Callable[[], Any], seconds: float = 15) -> Any:
    """What the condition gives as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:g} s: {inspect.getsource(condition).strip()}", pytrace=False)
        time.sleep(0.02)
    return value
