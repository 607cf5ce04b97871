"""Scores of the served model, its unquantized form, its base and the champion on the items of `evals`, and their differences.

`AccuracyRatios` are how much of the unquantized model's score the served model keeps on the same items: Student's t over pairs
of scores, and the rule of three if no item differs."""

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.answers import AnswerLog
from model_ops.drafting import error_of, moves, student, variance
from model_ops.evaluation.likelihoods import mean_interval
from model_ops.evaluation.measurement import ALL_SUITES, Findings, What
from model_ops.evaluation.own_answers import Answers, answer_items, key_of
from model_ops.evaluation.row_tables import TASK_ROWS, finished, part_key
from model_ops.evaluation.settings import EvaluateSettings, TaskSettings
from model_ops.files import bare
from model_ops.graders import PairwiseJudge
from model_ops.jobs import Job, ModelError, Progress
from model_ops.tasks import SCORERS, AnyItem, isolation, read_items, run_unit_tests

ASKED = ("target", "reference", "base", "champion")
TEST_MEMORY_MB = 512
"""Most memory of one program of unit tests."""
RATIO_OVER_ITEMS = "paired Student's t over items; rule of three if all are equal"
SHARES: tuple[What, ...] = ("solved", "cut")
"""Columns of TASK_ROWS that are measured beside the score."""
OVER_ITEMS = "Student's t over items; rule of three if all are equal"


@dataclass
class TaskScores(Findings):
    """Scores of every suite."""

    suites: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By suite: kind, items, items asked, and the isolation of programs."""


def task_scores(job: Job, settings: EvaluateSettings, progress: Progress) -> TaskScores:
    """Asks and scores every suite. Nothing is asked if the job has no `tasks`, or `settings.tasks.items` is 0."""
    result = TaskScores()
    if "tasks" not in job.inputs or not settings.tasks.items or not (job.inputs["tasks"] / "tasks.jsonl").exists():
        return result
    suites: dict[str, list[AnyItem]] = {}
    for item in read_items(job.inputs["tasks"] / "tasks.jsonl"):
        suites.setdefault(item.suite, []).append(item)
    for suite, items in suites.items():
        if items[0].kind == "judge" and settings.tasks.judge is None:
            result.not_measured[suite] = "its items need a judge; set evaluation.tasks.judge"
    chosen = {suite: _choice(items, settings) for suite, items in suites.items() if suite not in result.not_measured}
    result.suites = {
        suite: {"kind": items[0].kind, "items": len(suites[suite]), "asked": len(items)} for suite, items in chosen.items()
    }
    for suite, items in chosen.items():
        if items[0].kind == "unit_tests":
            result.suites[suite]["isolation"] = _isolation()
    with AnswerLog(job.output / ".work" / "task-answers.jsonl") as log:
        asked = [item for items in chosen.values() for item in items]
        answers = _all_answers(job, settings, asked, result, progress, log)
    rows: list[dict[str, Any]] = []
    for suite, items in chosen.items():
        try:
            scored = _judged if items[0].kind == "judge" else _scored
            rows += finished(
                job,
                "scores-" + "".join(letter if letter.isalnum() else "-" for letter in suite),
                lambda scored=scored, items=items: scored(items, answers, settings.tasks, progress),
            )
        except ModelError as error:
            result.not_measured[suite] = str(error)
    pq.write_table(pa.Table.from_pylist(rows, schema=bare(TASK_ROWS)), job.output / "task_scores.parquet")
    same = {role for role, given in answers.items() if given is answers.get("target")}
    for suite in chosen:
        _measure(result, suite, [row for row in rows if row["suite"] == suite], same)
    if "reference" in answers and "reference" not in same:
        _measure_ratios(result, [row for row in rows if not row["against"]])
    return result


def _choice(items: list[AnyItem], settings: EvaluateSettings) -> list[AnyItem]:
    ordered, most = sorted(items, key=lambda item: item.item_id), settings.tasks.items
    return ordered if len(ordered) <= most else random.Random(settings.seed).sample(ordered, most)


def _all_answers(
    job: Job, settings: EvaluateSettings, items: list[AnyItem], result: TaskScores, progress: Progress, log: AnswerLog
) -> dict[str, Answers]:
    """Answers by role. A role with the directory of another one has the same answers. log: keeps them across a kill."""
    key = hashlib.sha256(json.dumps(part_key(job)).encode()).hexdigest()
    by_directory: dict[Any, str] = {}
    answers: dict[str, Answers] = {}
    for role in (role for role in ASKED if role in job.inputs and items):
        first = by_directory.setdefault(job.inputs[role].resolve(), role)
        if first != role and first in answers:
            answers[role] = answers[first]
        elif first == role:
            try:
                answers[role] = answer_items(
                    job.inputs[role],
                    items,
                    settings.tasks,
                    settings.batch_size,
                    settings.seed,
                    progress,
                    f"tasks: {role}",
                    log,
                    f"{key} {role}",
                )
            except ModelError as error:
                result.not_measured[f"tasks of {role}"] = str(error)
    return answers


def _scored(
    items: list[AnyItem], answers: dict[str, Answers], settings: TaskSettings, progress: Progress
) -> list[dict[str, Any]]:
    """One row for each item, model and way of sampling: the mean score of its answers."""
    rows = []
    for place, item in enumerate(items):
        progress.stop_if_requested()
        progress.report(f"scores: {item.suite}", place, len(items), "items")
        for role, given in answers.items():
            for sampling, answered in given.get(key_of(item), {}).items():
                scores = [_score(item, answer.text, settings) for answer in answered]
                counts = {"solved": float(max(scores) == 1), "cut": float(np.mean([answer.is_cut for answer in answered]))}
                rows.append({**_row(item, role, "", sampling, float(np.mean(scores))), **counts})
    return rows


def _score(item: AnyItem, text: str, settings: TaskSettings) -> float:
    if item.kind == "unit_tests":
        return float(run_unit_tests(item, text, settings.test_seconds, TEST_MEMORY_MB).passed)
    return SCORERS[item.kind](item, text)


def _judged(
    items: list[AnyItem], answers: dict[str, Answers], settings: TaskSettings, progress: Progress
) -> list[dict[str, Any]]:
    """One row for each item that the judge compared: 1 for a win of the target over `against`, -1 for a loss, 0 for a tie."""
    rows = []
    if settings.judge is None:
        raise ModelError("its items need a judge; set evaluation.tasks.judge")
    with PairwiseJudge(settings.judge) as judge:
        for against in (role for role in answers if role != "target"):
            pairs = [
                (item, sampling, own.text, other.text)
                for item in items
                for sampling, answered in answers.get("target", {}).get(key_of(item), {}).items()
                for own, other in zip(answered, answers[against].get(key_of(item), {}).get(sampling, []), strict=False)
            ]
            progress.stop_if_requested()
            progress.report(f"judge: {items[0].suite}", 0, len(pairs), "comparisons")
            said = judge.compare_all([(item, own, other) for item, _, own, other in pairs])
            each: dict[tuple[str, str], list[float]] = {}
            named = {key_of(item): item for item in items}
            for (item, sampling, _, _), preferred in zip(pairs, said, strict=True):
                if preferred is not None:
                    each.setdefault((key_of(item), sampling), []).append(preferred)
            rows += [
                _row(named[key], "target", against, sampling, float(np.mean(scores)))
                for (key, sampling), scores in each.items()
            ]
    return rows


def _row(item: AnyItem, model: str, against: str, sampling: str, score: float) -> dict[str, Any]:
    return {
        "suite": item.suite,
        "item_id": item.item_id,
        "model": model,
        "against": against,
        "sampling": sampling,
        "score": score,
    }


def _isolation() -> str:
    """How programs are isolated on this machine; "" if they cannot be."""
    try:
        return isolation()
    except ModelError:
        return ""


def _measure(result: TaskScores, suite: str, rows: list[dict[str, Any]], same: set[str]) -> None:
    """Adds each model's mean score, and the target's gain over each other model on the items that both answered. same: roles
    with the target's own weights, whose gain is 0 without any uncertainty."""
    scores: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        scores.setdefault((row["model"], row["against"], row["sampling"]), {})[row["item_id"]] = row["score"]
    for (model, against, sampling), by_item in scores.items():
        values = list(by_item.values())
        least = -1.0 if against else 0.0
        what: What = "accuracy_gain" if against else "accuracy"
        about = {"on": suite, "sampling": sampling}
        ends = mean_interval(values, least, 1.0)
        mean, count = float(np.mean(values)), len(values)
        result.measure(what, mean, ends, count, "items", "share", of=model, against=against, method=OVER_ITEMS, **about)
        for share in SHARES if not against else ():
            of_items = [row[share] for row in rows if (row["model"], row["against"], row["sampling"]) == (model, "", sampling)]
            ends, mean = mean_interval(of_items, 0.0, 1.0), float(np.mean(of_items))
            result.measure(share, mean, ends, count, "items", "share", of=model, method=OVER_ITEMS, **about)
        own = scores.get(("target", "", sampling), {})
        both = sorted(set(own) & set(by_item))
        if model == "target" or not both:
            continue
        gains = [own[item] - by_item[item] for item in both]
        ends = (0.0, 0.0) if model in same else mean_interval(gains, -1.0, 1.0)
        about |= {"of": "target", "against": model, "method": "paired " + OVER_ITEMS}
        result.measure("accuracy_gain", float(np.mean(gains)), ends, len(gains), "items", "share", **about)


def _measure_ratios(result: TaskScores, rows: list[dict[str, Any]]) -> None:
    """Adds the share of the reference's score that the target keeps, by suite and over all suites."""
    scores: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for row in rows:
        of_suite = scores.setdefault(row["sampling"], {}).setdefault(row["suite"], {"target": {}, "reference": {}})
        of_suite.setdefault(row["model"], {})[row["item_id"]] = row["score"]
    for sampling, by_suite in scores.items():
        ratios = AccuracyRatios({suite: (of["target"], of["reference"]) for suite, of in by_suite.items()})
        for on, ratio in [*((suite, ratios.of(suite)) for suite in by_suite), (ALL_SUITES, ratios.average())]:
            if ratio is None:
                result.not_measured[f"accuracy kept on {on}"] = "the unquantized model answers no item right"
                continue
            about = {"of": "target", "against": "reference", "on": on, "sampling": sampling, "method": RATIO_OVER_ITEMS}
            result.measure("accuracy_kept", ratio.value, (ratio.low, ratio.high), ratio.items, "items", "ratio", **about)


@dataclass(frozen=True)
class AccuracyRatio:
    """Score of the served model over that of its unquantized form, with its interval. None instead of an interval for a single
    item, and where the unquantized form's score is that of a single item."""

    value: float
    low: float | None
    high: float | None
    items: int


class AccuracyRatios:
    """Ratios of suites. scores: suite -> (served model's scores by item, reference's scores by item), from 0 to 1."""

    def __init__(self, scores: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]):
        self._pairs: dict[str, np.ndarray] = {}
        for suite, (own, reference) in scores.items():
            both = sorted(set(own) & set(reference))
            pairs = np.array([[own[item], reference[item]] for item in both], dtype=np.float64).reshape(-1, 2)
            if pairs[:, 1].sum():
                self._pairs[suite] = pairs

    def of(self, suite: str) -> AccuracyRatio | None:
        """The ratio of one suite; None if the reference has no right answer there."""
        return self._mean([self._pairs[suite]]) if suite in self._pairs else None

    def average(self) -> AccuracyRatio | None:
        """The mean ratio over suites, each with the same weight; None if none has a ratio."""
        return self._mean(list(self._pairs.values())) if self._pairs else None

    @staticmethod
    def _mean(suites: list[np.ndarray]) -> AccuracyRatio:
        items = sum(map(len, suites))
        value = float(np.mean([pairs[:, 0].sum() / pairs[:, 1].sum() for pairs in suites]))
        equal = all((pairs[:, 0] == pairs[:, 1]).all() for pairs in suites)
        if any(len(pairs) < 2 or (not equal and np.count_nonzero(pairs[:, 1]) < 2) for pairs in suites):
            return AccuracyRatio(value, None, None, items)
        if equal:
            return AccuracyRatio(value, 1 - min(1, 3 / items), 1 + 3 / items, items)
        error, freedom = error_of(
            [(variance(moves(pairs[:, 1], pairs[:, 0])) / len(suites) ** 2, len(pairs) - 1) for pairs in suites]
        )
        reach = student(freedom) * error
        return AccuracyRatio(value, max(0.0, value - reach), value + reach, items)
