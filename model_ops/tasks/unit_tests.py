"""Task `unit_tests`: the answer's Python code passes the item's tests, as in HumanEval (Chen et al. 2021, arXiv 2107.03374).

    program = program_of(item, answer)        # source text for run_program
    outcome = run_program(source, seconds=10, memory_mb=512)     # SandboxResult(passed=True, isolation="namespaces, landlock,
    ...")

The code is the last fenced block of the answer, else the whole answer. If it defines the function itself it stands alone, else
it continues the item's prompt. HumanEval's tests define `check`, which is called with the function; other tests run by
themselves (assert statements).

The program runs in a locked-down subprocess with an empty environment, a temporary folder of its own, no standard input, and
limits of time, memory, files and processes; sandbox_child.py lists its layers. The network is cut off by a network namespace
where the kernel allows one to an unprivileged process, and by refused sockets everywhere. The program's output is not read.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from model_ops.jobs import ModelError
from model_ops.tasks.item import Item

FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
INSTRUCTION = (
    "Complete this Python function. Reply with the whole function, with its imports, in one code block and nothing "
    "else.\n\n```python\n{prompt}\n```"
)


class UnitTestsItem(Item):
    """A programming task with tests."""

    kind: Literal["unit_tests"] = "unit_tests"
    code: str = ""
    """The beginning that an answer may continue; "" for a task in words."""
    test: str
    """Python source of the tests."""
    entry_point: str = ""


def program_of(item: UnitTestsItem, text: str) -> str:
    """The program that passes the tests if it runs to its end."""
    fenced = FENCE.findall(text)
    answer = fenced[-1] if fenced else text
    name = re.escape(item.entry_point)
    whole = not item.code or (bool(name) and re.search(rf"^def\s+{name}\b", answer, re.MULTILINE) is not None)
    solution = f"{_imports(item.code)}\n{answer}" if whole else f"{item.code}{answer}"
    has_check = item.entry_point and re.search(r"^def check\b", item.test, re.MULTILINE)
    call = f"check({item.entry_point})" if has_check else ""
    return f"{solution}\n\n{item.test}\n\n{call}\n"


def _imports(code: str) -> str:
    """The import lines at the start of a prompt, which an answer may leave out."""
    return "\n".join(line for line in code.splitlines() if re.match(r"(from\s+\S+\s+)?import\s", line))


CHILD = Path(__file__).with_name("sandbox_child.py")
STARTING_SECONDS = 5
"""Wall-clock seconds allowed for starting Python, besides the program's own."""


@dataclass(frozen=True)
class SandboxResult:
    """Result of one program."""

    passed: bool
    """Whether the program ran to its end without an exception."""
    isolation: str
    """Layers of isolation around the program."""
    timed_out: bool = False


def run_program(source: str, seconds: float, memory_mb: int) -> SandboxResult:
    """Runs Python source. A program that loops, forks, exits early or uses too much has not passed.

    Raises ModelError if this system cannot lock a subprocess down; then nothing was run.
    """
    if sys.platform != "linux":
        raise ModelError(
            "unit tests of answers run only on Linux, which can lock a subprocess down; leave the suite out of evals"
        )
    with tempfile.TemporaryDirectory(prefix="millrace-tests-") as folder:
        program = Path(folder) / "answer.py"
        program.write_text(source, encoding="utf-8", errors="replace")
        reading, writing = os.pipe()
        word = secrets.token_hex(16)
        try:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    "-B",
                    str(CHILD),
                    str(program),
                    folder,
                    str(seconds),
                    str(memory_mb << 20),
                    str(writing),
                ],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(writing,),
                env={"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"},
                start_new_session=True,
            )
        finally:
            os.close(writing)
        timed_out = False
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(word.encode())
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
            return SandboxResult(False, "", True)
        raise ModelError(
            "this system lets no process lock itself down (seccomp is missing), so unit tests of answers were not "
            "run; run the evaluation on another machine, or leave the suite out of evals"
        )
    return SandboxResult(not timed_out and said[1:2] == [word], said[0].removeprefix("isolated by "), timed_out)
