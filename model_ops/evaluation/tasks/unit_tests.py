"""Task `unit_tests`: the answer's Python code passes the item's tests, as in HumanEval (Chen et al. 2021, arXiv 2107.03374).

    program = program_of(item, answer)        # source text for sandbox.run_program

The code is the last fenced block of the answer, else the whole answer. If it defines the function itself it stands alone, else
it continues the item's prompt. HumanEval's tests define `check`, which is called with the function; other tests run by
themselves (assert statements).
"""

from __future__ import annotations

import re
from typing import Literal

from model_ops.evaluation.tasks.item import Item

FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
INSTRUCTION = ("Complete this Python function. Reply with the whole function, with its imports, in one code block and nothing "
               "else.\n\n```python\n{prompt}\n```")


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
