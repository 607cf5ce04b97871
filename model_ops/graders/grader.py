"""Grades groups of answers with all parts of a recipe's grader.

    with Grader(settings, key="preference.on_policy.grader") as grader:
        grader.grade(groups)           # for each group a Grade for each answer: its value, its parts, or why it has none

Numbers of different prompts need not be comparable: a judge's grade of an answer is its share of wins minus its share of losses
against the other answers to the same prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

from model_ops.graders.functions import FunctionWorkers
from model_ops.graders.grade import AskedGroup, Failures, Grade, check_all, combined_group, truth
from model_ops.graders.judge import Judge, PairwiseJudge, graded_by_rubric, ranked
from model_ops.graders.openai_grader import OpenAiGrader
from model_ops.graders.settings import GraderPart, GraderSettings
from model_ops.jobs import ModelError
from model_ops.rendering import Row
from model_ops.tasks import JudgedItem, isolation

Groups = Sequence[AskedGroup]
GroupGrader = Callable[[Groups], list[list[Grade]]]

MATH = Path(__file__).with_name("math_equality.py")


class Scorer(Protocol):
    """A reward model that may grade."""

    @property
    def record(self) -> Any: ...

    def scores(self, rows: Sequence[Row]) -> Any: ...


class Grader:
    """The parts of a grader, ready to grade. Raises ModelError for one that cannot be used on this machine."""

    def __init__(self, settings: GraderSettings, key: str, reward_model: Scorer | None = None):
        """key: of the recipe, for messages. reward_model: of parts with `by: reward_model`."""
        self.settings, self.key, self.failures, self._reward_model = settings, key, Failures(), reward_model
        self._open = ExitStack()
        self.notes: list[str] = []
        """Once it is opened: what it decided about its parts."""

    def __enter__(self) -> Grader:
        with self._open:  # closes what is open already where a part cannot be used
            self._parts = {name: self._grader_of(name, part) for name, part in self.settings.parts.items()}
            self._open = self._open.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def grade(self, groups: Groups) -> list[list[Grade]]:
        """Raises ModelError if a grader cannot work, fails on most answers, or is a judge that prefers a place."""
        by_part = {name: grade(groups) for name, grade in self._parts.items()}
        graded = []
        for place, group in enumerate(groups):
            each = zip(*(grades[place] for grades in by_part.values()), strict=True)
            graded.append(combined_group([dict(zip(by_part, grades, strict=True)) for grades in each], self.settings))
            self.failures.count(group.row_id, graded[-1])
        return graded

    def _grader_of(self, name: str, part: GraderPart) -> GroupGrader:
        path, _, function = part.by.rpartition(":")
        judge_key = f"{self.key}.parts.{name}.judge"
        if path.endswith(".json"):
            return self._open.enter_context(OpenAiGrader(Path(path), part, f"{self.key}.parts.{name}")).grade
        if path:
            workers = self._open.enter_context(FunctionWorkers(Path(path), function, part.seconds, part.completions))
            if workers.whole and part.completions is None:
                other = "messages" if workers.form == "text" else "text"
                self.notes.append(
                    f"{self.key}: {workers.name} gets completions as {workers.form}, which its source reads; write "
                    f"`completions: {other}` beside `by` if it does not"
                )
            return workers.grade
        if part.by == "math":
            if find_spec("math_verify") is None:
                raise ModelError(
                    f"{self.key}.parts.{name}: the grader math needs the package math-verify: pip install 'millrace[math]'"
                )
            workers = self._open.enter_context(FunctionWorkers(MATH, "grade", part.seconds))
            return lambda groups: workers.grade([replace(group, columns=truth("math", group.columns)) for group in groups])
        if part.by == "judge":
            return partial(judged, self._open.enter_context(PairwiseJudge(part.asked_judge, judge_key)))
        if part.by in ("rubric", "ranking"):
            asked = self._open.enter_context(Judge(part.asked_judge, judge_key))
            return partial(ranked, asked) if part.by == "ranking" else partial(graded_by_rubric, asked, part.criteria)
        if part.by == "reward_model":
            if self._reward_model is None:
                raise ModelError(
                    f"{self.key}.parts.{name}: there is no reward model here; switch on reward_model in the recipe"
                )
            return partial(scored, self._reward_model)
        if part.by == "unit_tests":
            isolation()  # raises where nothing can lock a program down
        return partial(check_all, part)


def scored(model: Scorer, groups: Groups) -> list[list[Grade]]:
    """Scores in standard deviations from the mean of held-out answers, so that they can be added to other parts."""
    rows = [
        Row(f"{place}:{number}", [*group.messages, answer.message], group.tools)
        for place, group in enumerate(groups)
        for number, answer in enumerate(group.answers)
    ]
    scores = model.scores(rows)
    grades = iter(
        Grade(problem=scores.left_out[row.row_id]) if score is None else Grade(model.record.standard(score))
        for row, score in zip(rows, scores.values, strict=True)
    )
    return [[next(grades) for _ in group.answers] for group in groups]


def judged(judge: PairwiseJudge, groups: Groups) -> list[list[Grade]]:
    """Each answer's wins minus losses against the others to its prompt, as a share of those comparisons: -1 to 1. Equal texts
    are a tie. Raises ModelError as PairwiseJudge does."""
    said: list[list[list[float | None]]] = [[[] for _ in group.answers] for group in groups]
    places, asked = [], []
    for place, group in enumerate(groups):
        item = JudgedItem(suite="graded", item_id=group.row_id, messages=group.messages)
        for one, other in combinations(range(len(group.answers)), 2):
            texts = group.answers[one].content, group.answers[other].content
            if texts[0] == texts[1]:
                said[place][one].append(0.0)
                said[place][other].append(0.0)
            else:
                places.append((said[place][one], said[place][other]))
                asked.append((item, *texts))
    for (mine, theirs), better in zip(places, judge.compare_all(asked), strict=True):
        mine.append(better)
        theirs.append(None if better is None else -better)
    return [[_mean(each) for each in of_group] for of_group in said]


def _mean(said: list[float | None]) -> Grade:
    usable = [each for each in said if each is not None]
    return Grade(sum(usable) / len(usable)) if usable else Grade(problem="the judge gave no usable reply")
