"""Graders by name: the checks of model_ops/tasks, unit tests, length, language.

What is right comes from the row: from the fields of the item that it brings (rows of `rl_prompts`), or from a column of TRUTHS;
for pairs of answers, from the chosen one. A row without it is not graded: None, not 0.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from pydantic import ValidationError

from model_ops.graders.grade import AskedGroup, Grade, GradedAnswer
from model_ops.graders.settings import GraderPart
from model_ops.jobs import ModelError
from model_ops.tasks import (
    ITEMS,
    SCORERS,
    AnyItem,
    NumberItem,
    UnitTestsItem,
    accepted_calls,
    calls_as_text,
    final_number,
    language_of,
    logged_number,
    run_unit_tests,
)

TRUTHS = ("answer", "ground_truth", "solution", "reference_answer")
"""Columns that hold the right answer, the first of them that a row has."""
TEST_MEMORY_MB = 512
"""Most memory of one program of unit tests."""


def check_all(part: GraderPart, groups: Sequence[AskedGroup]) -> list[list[Grade]]:
    """`check` of each group; on all cores at a time where answers are programs."""
    with ThreadPoolExecutor(os.cpu_count() or 1 if part.by in ("unit_tests", "verifier") else 1) as pool:
        return list(pool.map(partial(check, part), groups))


def check(part: GraderPart, group: AskedGroup) -> list[Grade]:
    """The grades of the answers. Raises ModelError where programs of answers cannot be locked down."""
    if part.by == "length":
        return [Grade(short_enough(answer.tokens, part.most_tokens)) for answer in group.answers]
    if part.by == "language":
        wanted = part.language or group.columns.get("language")
        said = [language_of(answer.content) for answer in group.answers]
        return [Grade() if each is None or not wanted else Grade(float(each == wanted)) for each in said]
    item = item_of(part, group.columns)
    return [Grade() if item is None else _graded(item, answer, part) for answer in group.answers]


def short_enough(tokens: int, most: int) -> float:
    """1 up to `most` tokens, falling to 0 at twice as many."""
    return min(1.0, max(0.0, 2.0 - tokens / most))


def item_of(part: GraderPart, columns: Mapping[str, Any]) -> AnyItem | None:
    """The item of model_ops/tasks that the row's columns make; None if they lack what its kind needs."""
    kind = columns.get("kind") if part.by == "verifier" else part.by
    if kind not in ITEMS or kind in ("judge", "record"):
        return None
    try:
        others = {name: each for name, each in columns.items() if name != "answer"}
        given = {**truth(kind, columns), **others, **({"pattern": part.pattern} if part.pattern else {})}
        fields = {name: given[name] for name in ITEMS[kind].model_fields if str(given.get(name) or "").strip()}
        item = ITEMS[kind](**{**fields, "kind": kind, "suite": "graded", "item_id": "", "messages": [], "tools": None})
    except (ValidationError, ValueError):  # a schema that is none, arguments that are no JSON object
        return None
    return None if isinstance(item, NumberItem) and final_number(item.answer) is None else item


def truth(kind: str, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The field that says what is right, from a column of TRUTHS or from the chosen answer of a pair."""
    chosen = columns.get("chosen") or {}
    if kind == "function_call":
        return {"accepted": calls} if (calls := accepted_calls(chosen)) else {}
    right = next((columns[name] for name in TRUTHS if columns.get(name) is not None), None)
    if right is None and isinstance(right := chosen.get("content"), str) and kind == "number":
        right = str(logged_number(right) or "")
    return {"answer": str(right)} if isinstance(right, str | int | float) and str(right).strip() else {}


def _graded(item: AnyItem, answer: GradedAnswer, part: GraderPart) -> Grade:
    try:
        return Grade(_score(item, answer, part))
    except ModelError:
        raise
    except Exception as error:  # an answer may be anything, and one that a check did not expect must not end a training
        return Grade(problem=f"raised {type(error).__name__}")


def _score(item: AnyItem, answer: GradedAnswer, part: GraderPart) -> float:
    if isinstance(item, UnitTestsItem):
        return float(run_unit_tests(item, answer.content, part.seconds, TEST_MEMORY_MB).passed)
    return SCORERS[item.kind](item, calls_as_text(answer.message) if item.kind == "function_call" else answer.content)
