"""Task `unit_tests`: the answer's Python code passes the item's tests, as in HumanEval (Chen et al. 2021, arXiv 2107.03374).

The code is the last fenced block of the answer that defines the function, else its last block, else the whole answer. If it
defines the function itself it stands alone, else it continues the item's prompt. HumanEval's tests define `check`, which is
called with the function; other tests are assert statements, or functions `test_...` that need nothing of pytest. sandbox.py
runs tests and answer, in two processes, with Python's own library alone.
"""

import ast
import re
import sys
from typing import Literal

from model_ops.tasks.code_fences import code_blocks
from model_ops.tasks.item import Item
from model_ops.tasks.sandbox import SandboxResult, run_tests

PYTHON = re.compile(r"(?:(?:python|py)[\d.]*)?")
RUNNING = ast.Expr | ast.Assert | ast.For | ast.While | ast.If | ast.With | ast.Try
"""Statements that may run a test. None stands in an assignment."""
OF_PYTEST = {f"{name}{what}" for name in ("setup", "teardown") for what in ("", "_module", "_function", "_method", "_class")}
"""Functions that only pytest calls."""


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
    blocks = [block.code for block in code_blocks(text) if PYTHON.fullmatch(block.language)] or [text]
    defines = re.compile(rf"^(async\s+)?def\s+{re.escape(item.entry_point)}\b" if item.entry_point else r"(?!)", re.MULTILINE)
    answer = next((block for block in reversed(blocks) if defines.search(block)), blocks[-1])
    whole = not item.code or defines.search(answer) is not None
    return run_tests(
        f"{_imports(item.code)}\n{answer}" if whole else f"{item.code}{answer}",
        item.test,
        seconds=seconds,
        memory_mb=memory_mb,
        prepared=item.code if _compiles(item.code) else _imports(item.code),
        entry_point=item.entry_point,
        check=bool(item.entry_point) and re.search(r"^def check\b", item.test, re.MULTILINE) is not None,
    )


def running_tests(test: str, entry_point: str) -> str:
    """The tests, with calls of functions `test_...` that nothing calls. Raises ValueError for tests that are not Python, or
    that could not tell a right answer from a wrong one, because nothing runs them, or gives them what they need."""
    try:
        body = ast.parse(test).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"has tests that are not Python (line {getattr(error, 'lineno', None) or 1})") from error
    if absent := sorted({name for each in body for name in _imported(each)} - sys.stdlib_module_names):
        raise ValueError(
            f"has tests that import {', '.join(absent)}, which the sandbox does not have: it holds Python's own library and "
            "the answer, whose names need no import"
        )
    functions = {each.name: each for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    if (check := functions.get("check")) is not None and entry_point:
        if isinstance(check, ast.AsyncFunctionDef):
            raise ValueError("has an async `check`, which nothing awaits: make it a plain function")
        return test
    statements = [each for each in body if isinstance(each, RUNNING) and not _is_guarded(each)]
    called = {node.id for each in statements for node in ast.walk(each) if isinstance(node, ast.Name)}
    names = [name for name in functions if name.startswith("test") and name not in called]
    for name in names:
        given = functions[name].args
        needed = len(given.posonlyargs + given.args) - len(given.defaults) + given.kw_defaults.count(None)
        if needed or isinstance(functions[name], ast.AsyncFunctionDef):
            raise ValueError(f"has a test {name} that is async or takes parameters (as of fixtures), which nothing gives")
    classes = {each.name for each in body if isinstance(each, ast.ClassDef) and _holds_tests(each)}
    if unused := sorted((classes | OF_PYTEST & functions.keys()) - called):
        raise ValueError(f"has {unused[0]}, which only pytest or unittest runs: write functions test_... that stand alone")
    if not names and not statements:
        raise ValueError(
            "has tests that nothing runs: write assert statements, functions test_... without parameters, or `check` with an "
            "`entry_point`"
        )
    return "\n".join([test, "", *(f"{name}()" for name in names)]) if names else test


def _imported(statement: ast.stmt) -> set[str]:
    """Modules that a statement imports; none where it tries to."""
    if isinstance(statement, ast.Try):
        return set()
    nodes = list(ast.walk(statement))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in plain | named}


def _holds_tests(statement: ast.ClassDef) -> bool:
    return any(
        isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test") for each in statement.body
    )


def _is_guarded(statement: ast.stmt) -> bool:
    """Whether nothing of it runs here: `if __name__ == ...`, or a docstring."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test)


def _compiles(code: str) -> bool:
    try:
        compile(code, "prompt", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _imports(code: str) -> str:
    """The import lines at the start of a prompt, which an answer may leave out."""
    return "\n".join(line for line in code.splitlines() if re.match(r"(from\s+\S+\s+)?import\s", line))
