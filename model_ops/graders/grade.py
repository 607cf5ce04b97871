"""What a grader is asked and what it says, how parts make one grade, and the count of answers that have none.

None is "not applicable", or a failure with its reason. Neither is ever 0: a grader that fails would else teach that its answer
was bad."""

from __future__ import annotations

import math
import os
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import ValidationError

from model_ops.graders.settings import GraderPart, GraderSettings
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

MOSTLY = 0.5
"""If at least this share of answers has no grade because graders failed, the graders are to be mended."""
FEWEST, NEWEST = 16, 256
"""Answers before which nothing is refused, and those that are looked at: a grader that worked for days and lost its server
stops the training at once."""
NAMED_ROWS = 3


@dataclass(frozen=True)
class GradedAnswer:
    """One answer to be graded."""

    text: str
    """As generated, without the end of the turn."""
    message: dict[str, Any]
    """The assistant's message in it: content, and where it has them reasoning_content and tool_calls."""
    tokens: int = 0
    ids: Sequence[int] | None = None
    """Its tokens, with the end of the turn where it ended; None where they are not known."""

    @property
    def content(self) -> str:
        return self.message.get("content") or ""


@dataclass(frozen=True)
class AskedGroup:
    """The answers to one prompt."""

    row_id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    """messages, tools: of the prompt."""
    columns: Mapping[str, Any]
    """What else the row has: its columns, and what it brings to verify an answer with."""
    answers: Sequence[GradedAnswer]
    training: Mapping[str, float] | None = None
    """How far the training was that sampled the answers, in TRL's names: global_step, max_steps, epoch; None: not known."""


@dataclass(frozen=True)
class Grade:
    """A number; or None, where the grader does not apply to the row, or where `problem` says why it failed."""

    value: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""
    """A fixed text without words of the user."""

    @classmethod
    def of(cls, said: Any) -> Grade:
        """The grade in what a function returned: a number, a dict of numbers, or None. In a dict, `score` is the grade if it
        is there, else the sum; values that are no numbers are left out."""
        if said is None:
            return cls()
        numbers = {str(name): _number(each) for name, each in (said if isinstance(said, dict) else {"": said}).items()}
        parts = {name: each for name, each in numbers.items() if each is not None}
        if not parts or (isinstance(said, dict) and "score" in said and "score" not in parts):
            return cls(problem=f"answered {type(said).__name__}, which is no number")
        if not all(map(math.isfinite, parts.values())):
            return cls(problem="answered a number that is not finite (NaN or infinity)")
        value = parts["score"] if "score" in parts else math.fsum(parts.values())
        return cls(value, {name: each for name, each in parts.items() if name})


def _number(value: Any) -> float | None:
    """None for what is no number."""
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return math.inf


def grades_of(said: Sequence[Any]) -> list[Grade]:
    """The grades in what a function returned for the answers to one prompt. A dict that says None where another answer's has a
    number has no grade, unless it says `score`: the sums would else count the None as 0."""
    grades = [each if isinstance(each, Grade) else Grade.of(each) for each in said]
    numbers = {name for grade in grades for name in grade.parts}
    return [
        Grade(None, grade.parts, grade.problem)
        if isinstance(each, dict) and "score" not in each and any(each[name] is None for name in numbers & each.keys())
        else grade
        for each, grade in zip(said, grades, strict=True)
    ]


def combined_group(grades: Sequence[Mapping[str, Grade]], settings: GraderSettings) -> list[Grade]:
    """`combined`, of the answers to one prompt, which are compared. A part that applies to none of them is left out. An answer
    that lacks a part which another one has gets no grade: without its term a sum would count it as 0, and with one of its own,
    such as weights that are scaled up, an answer that no penalty applies to would be better than the best."""
    applies = {name for parts in grades for name, grade in parts.items() if grade.value is not None or grade.problem}
    combined_grades = [combined(parts, settings) for parts in grades]
    return [
        grade if all(parts[name].value is not None for name in applies) else replace(grade, value=None)
        for parts, grade in zip(grades, combined_grades, strict=True)
    ]


def combined(grades: Mapping[str, Grade], settings: GraderSettings) -> Grade:
    """One grade of the parts of `settings`. Parts that do not apply are left out; a part that failed leaves no grade."""
    failed = " and ".join(f"{name}: {grade.problem}" for name, grade in grades.items() if grade.problem)
    applied = {name: grade.value for name, grade in grades.items() if grade.value is not None}
    parts = applied | {f"{name}.{part}": each for name, grade in grades.items() for part, each in grade.parts.items()}
    if failed or not applied:
        return Grade(None, parts, failed)
    if settings.combine == "product":
        return Grade(math.prod(applied.values()), parts)
    return Grade(math.fsum(settings.parts[name].weight * each for name, each in applied.items()), parts)


class Failures:
    """Answers that a grader, or what `who` says, failed on, by reason, with some of their rows. answers: of all."""

    def __init__(self, who: str = "the grader") -> None:
        self.who = who
        self.answers, self.reasons, self.rows = 0, Counter[str](), dict[str, None]()
        self._newest = deque[str](maxlen=NEWEST)

    def count(self, row_id: str, grades: Sequence[Grade]) -> None:
        """Raises ModelError where graders have failed on most of the newest answers."""
        problems = [grade.problem for grade in grades if grade.problem]
        self.answers += len(grades)
        self.reasons.update(problems)
        if problems and len(self.rows) < NAMED_ROWS:
            self.rows[row_id] = None
        self._newest.extend(grade.problem for grade in grades)
        reasons, newest = Counter(problem for problem in self._newest if problem), len(self._newest)
        if newest >= FEWEST and reasons.total() >= MOSTLY * newest:
            said = "; ".join(f"{times:,} times {reason}" for reason, times in reasons.most_common(3))
            mend = "mend it, or raise its `seconds`," if "took longer" in said else "mend it"
            raise ModelError(
                f"{self.who} failed on {reasons.total():,} of {newest:,} answers: {said} (rows {', '.join(self.rows)}); {mend} "
                "and run again"
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
