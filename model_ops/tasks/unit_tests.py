"""Task `unit_tests`: the answer's Python code passes the item's tests, as in HumanEval (Chen et al. 2021, arXiv 2107.03374).

    run_unit_tests(item, answer, seconds=10, memory_mb=512)     # SandboxResult(passed=True, isolation="landlock 7, seccomp")

The code is the last fenced block of the answer, else the whole answer. If it defines the function itself it stands alone, else
it continues the item's prompt. HumanEval's tests define `check`, which is called with the function; other tests run by
themselves (assert statements). sandbox.py runs tests and answer, in two processes.
"""

from __future__ import annotations

import re
from typing import Literal

from model_ops.tasks.item import Item
from model_ops.tasks.sandbox import SandboxResult, run_tests

FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


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
    fenced = FENCE.findall(text)
    answer = fenced[-1] if fenced else text
    name = re.escape(item.entry_point)
    whole = not item.code or (bool(name) and re.search(rf"^(async\s+)?def\s+{name}\b", answer, re.MULTILINE) is not None)
    return run_tests(
        f"{_imports(item.code)}\n{answer}" if whole else f"{item.code}{answer}",
        item.test,
        seconds=seconds,
        memory_mb=memory_mb,
        prepared=item.code if _compiles(item.code) else _imports(item.code),
        entry_point=item.entry_point,
        check=bool(item.entry_point) and re.search(r"^def check\b", item.test, re.MULTILINE) is not None,
    )


def _compiles(code: str) -> bool:
    try:
        compile(code, "prompt", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _imports(code: str) -> str:
    """The import lines at the start of a prompt, which an answer may leave out."""
    return "\n".join(line for line in code.splitlines() if re.match(r"(from\s+\S+\s+)?import\s", line))
