"""Grades answers by a grader in OpenAI's JSON form, read from a file: grader: grader.json in a recipe.

A row that lacks what a template names has no grade; an answer that lacks it, as one that is no JSON, has 0. What cannot be had
here is refused when the file is read. The formula of `multi` is read as a tree of numbers, names, arithmetic and FUNCTIONS, and
never evaluated as Python."""

from __future__ import annotations

import ast
import json
import math
import operator
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from model_ops.graders.grade import AskedGroup, Grade, GradedAnswer
from model_ops.graders.judge import Judge, last_object
from model_ops.graders.settings import GraderPart
from model_ops.jobs import ModelError
from model_ops.tasks import FunctionFailure, call_function, isolation

LONGEST = 100_000
"""Most characters of a text that is compared."""


def similarity(metric: str, text: str, reference: str) -> float:
    """Similarity of two texts, 0 to 1. metric: one of METRICS.

    fuzzy_match   2 LCS / (n + m) over characters: the normalized Indel similarity
    bleu          1- to 4-gram precisions, add-one smoothing from 2-grams on (Lin and Och 2004), brevity penalty
    gleu          the smaller one of precision and recall over all 1- to 4-grams (Wu et al. 2016, arXiv 1609.08144)
    rouge_1 ... 5, rouge_l     F1 of n-grams; of the longest common subsequence of words (Lin 2004)

    Words are runs of letters and digits in lower case; BLEU and GLEU split at white space and keep case."""
    return METRICS[metric](text[:LONGEST], reference[:LONGEST])


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence, a row of the table in the bits of a number (Hyyro 2004)."""
    places: dict[str, int] = {}
    for place, each in enumerate(first):
        places[each] = places.get(each, 0) | 1 << place
    whole = (1 << len(first)) - 1
    row = whole
    for each in second:
        common = row & places.get(each, 0)
        row = ((row + common) | (row - common)) & whole
    return len(first) - row.bit_count()


def _grams(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[place : place + size]) for place in range(len(words) - size + 1))


def _f1(common: int, first: int, second: int) -> float:
    return 2 * common / (first + second) if first + second else 0.0  # as rouge_score: texts shorter than n words have none


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def _rouge(size: int) -> Callable[[str, str], float]:
    def score(text: str, reference: str) -> float:
        own, wanted = _grams(_words(text), size), _grams(_words(reference), size)
        return _f1((own & wanted).total(), own.total(), wanted.total())

    return score


def _rouge_l(text: str, reference: str) -> float:
    own, wanted = _words(text), _words(reference)
    return _f1(common_subsequence(own, wanted), len(own), len(wanted))


def _bleu(text: str, reference: str) -> float:
    own, wanted = text.split(), reference.split()
    if not own or not wanted:
        return float(own == wanted)
    logs = 0.0
    for size in range(1, 5):
        grams, extra = _grams(own, size), int(size > 1)
        right = (grams & _grams(wanted, size)).total() + extra
        if not right:
            return 0.0
        logs += math.log(right / (grams.total() + extra)) / 4
    return math.exp(logs + min(0.0, 1 - len(wanted) / len(own)))


def _gleu(text: str, reference: str) -> float:
    own, wanted = (sum((_grams(each.split(), size) for size in range(1, 5)), Counter()) for each in (text, reference))
    most = max(own.total(), wanted.total())
    return (own & wanted).total() / most if most else 0.0


METRICS: dict[str, Callable[[str, str], float]] = {
    "fuzzy_match": lambda text, reference: _f1(common_subsequence(text, reference), len(text), len(reference)),
    "bleu": _bleu,
    "gleu": _gleu,
    **{f"rouge_{size}": _rouge(size) for size in range(1, 6)},
    "rouge_l": _rouge_l,
}
"""Name -> (text, reference) -> similarity."""


TEMPLATE = re.compile(r"\{\{\s*(.*?)\s*\}\}")
STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
OPERATIONS = ("eq", "ne", "like", "ilike")
PYTHON_MEMORY_MB = 2_048
LARGEST_SOURCE = 256 << 10
"""Bytes; as OpenAI's limits are."""
SCORE = 'Reply with one JSON object and nothing else, in which `result` is the score, a number: {"result": 0.5}'
ARITHMETIC: dict[type, Callable[..., float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: math.pow,
    ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max, "abs": abs,
    "floor": math.floor, "ceil": math.ceil, "exp": math.exp, "sqrt": math.sqrt, "log": math.log}  # fmt: skip
"""Of formulas."""


class MissingValue(Exception):
    """A row or an answer lacks what a template names; the text is the name."""


class OpenAiGrader:
    """A grader of a file. Raises ModelError for a file that is none, or that needs what cannot be had here."""

    def __init__(self, path: Path, part: GraderPart, key: str):
        self.name, self.seconds = path.name, part.seconds
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"{key}: {path.name} cannot be read as JSON") from error
        self.grader = content.get("grader", content) if isinstance(content, dict) else content
        self._judge = Judge(part.judge, f"{key}.judge") if part.judge else None
        self._check(self.grader, self.name)

    def __enter__(self) -> OpenAiGrader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._judge:
            self._judge.__exit__()

    def _check(self, grader: Any, name: str, inside: bool = False) -> None:
        """Raises ModelError for what cannot be graded."""
        kind = grader.get("type") if isinstance(grader, dict) else None
        problem = None
        if kind in ("string_check", "text_similarity") and not all(
            isinstance(grader.get(of), str) for of in ("input", "reference")
        ):
            problem = "needs `input` and `reference`, texts"
        elif kind == "string_check" and grader.get("operation") not in OPERATIONS:
            problem = f"has an operation that is none of {', '.join(OPERATIONS)}"
        elif kind == "text_similarity" and grader.get("evaluation_metric") not in METRICS:
            problem = (
                f"has the metric {str(grader.get('evaluation_metric'))[:40]}, and only {', '.join(METRICS)} can be had here"
            )
        elif kind == "python" and not (
            isinstance(grader.get("source"), str) and len(grader["source"].encode()) <= LARGEST_SOURCE
        ):
            problem = f"needs `source`, a text of at most {LARGEST_SOURCE:,} bytes"
        elif kind == "python":
            isolation()
        elif kind == "score_model" and self._judge is None:
            problem = "asks a model: name its server in `judge: {base_url, model}` beside `by`"
        elif kind == "score_model" and not _are_messages(grader.get("input")):
            problem = "needs `input`, a list of messages with texts"
        elif kind == "multi" and (inside or not (isinstance(grader.get("graders"), dict) and grader["graders"])):
            problem = "needs `graders` by name, and none of them a `multi`"
        elif kind == "multi":
            for of, each in grader["graders"].items():
                self._check(each, f"{name}, {of}", inside=True)
            problem = formula_problem(grader.get("calculate_output"), grader["graders"])
        elif kind not in GRADERS:
            problem = f"has the type {str(kind)[:40]}, and only {', '.join(GRADERS)} can be had here"
        if problem:
            raise ModelError(f"the grader {name} {problem}")

    def grade(self, groups: Sequence[AskedGroup]) -> list[list[Grade]]:
        asked = [(group, answer) for group in groups for answer in group.answers]
        with ThreadPoolExecutor(self._judge.settings.concurrency if self._judge else os.cpu_count() or 1) as pool:
            grades = iter(list(pool.map(lambda each: self._grade(self.grader, *namespace(*each)), asked)))
        return [[next(grades) for _ in group.answers] for group in groups]

    def _grade(self, grader: Mapping[str, Any], item: dict[str, Any], sample: dict[str, Any]) -> Grade:
        if grader["type"] == "multi":
            grades = {name: self._grade(each, item, sample) for name, each in grader["graders"].items()}
            values = {name: grade.value for name, grade in grades.items() if grade.value is not None}
            if problem := next((f"{name}: {grade.problem}" for name, grade in grades.items() if grade.problem), ""):
                return Grade(None, values, problem)
            try:
                value = calculate(ast.parse(grader["calculate_output"], mode="eval").body, values)
            except (ArithmeticError, ValueError, TypeError, KeyError):
                return Grade(None, values, "has a formula without a value for these grades")
            return Grade(Grade.of(value).value, values, Grade.of(value).problem)
        try:
            return GRADERS[grader["type"]](self, grader, item, sample)
        except MissingValue as error:
            if str(error).startswith("sample"):
                return Grade(0.0)
            return Grade(problem=f"names {error}, which is not there; its item has {', '.join(sorted(item)) or 'no columns'}")
        except FunctionFailure as error:
            return Grade(problem=str(error))

    def _string_check(self, grader: Mapping[str, Any], item: dict[str, Any], sample: dict[str, Any]) -> Grade:
        text, wanted = (filled(grader[name], item, sample) for name in ("input", "reference"))
        operation = grader["operation"]
        if operation in ("eq", "ne"):
            return Grade(float((text == wanted) == (operation == "eq")))
        return Grade(float(wanted in text if operation == "like" else wanted.lower() in text.lower()))

    def _text_similarity(self, grader: Mapping[str, Any], item: dict[str, Any], sample: dict[str, Any]) -> Grade:
        text, wanted = (filled(grader[name], item, sample) for name in ("input", "reference"))
        return Grade(similarity(grader["evaluation_metric"], text, wanted))

    def _python(self, grader: Mapping[str, Any], item: dict[str, Any], sample: dict[str, Any]) -> Grade:
        given = [sample, item]
        return Grade.of(call_function(grader["source"], "grade", given, seconds=self.seconds, memory_mb=PYTHON_MEMORY_MB))

    def _score_model(self, grader: Mapping[str, Any], item: dict[str, Any], sample: dict[str, Any]) -> Grade:
        messages = [{**each, "content": filled(_text(each), item, sample)} for each in grader["input"]]
        sampling = {
            name: each
            for name, each in (grader.get("sampling_params") or {}).items()
            if name in ("temperature", "top_p", "seed")
        }
        if self._judge is None:
            raise FunctionFailure("asks a model, and none is named")
        said = self._judge.chat([*messages, {"role": "user", "content": SCORE}], sampling)
        grade = Grade.of(last_object(said).get("result"))
        low, high = grader.get("range") or (0, 1)
        if grade.value is None or not low <= grade.value <= high:
            return Grade(problem="the judge gave no score in its range")
        return grade


GRADERS = {"string_check": OpenAiGrader._string_check, "text_similarity": OpenAiGrader._text_similarity,
    "python": OpenAiGrader._python, "score_model": OpenAiGrader._score_model, "multi": None}  # fmt: skip


def namespace(group: AskedGroup, answer: GradedAnswer) -> tuple[dict[str, Any], dict[str, Any]]:
    """(item, sample) of templates and Python graders, as JSON has them."""
    sample = {"output_text": answer.content, "output_tools": answer.message.get("tool_calls") or []}
    with suppress(ValueError, RecursionError):
        sample["output_json"] = json.loads(answer.content)
    return json.loads(json.dumps(dict(group.columns), default=str)), sample


def filled(template: str, item: dict[str, Any], sample: dict[str, Any]) -> str:
    """The text with its templates' values. Raises MissingValue."""

    def value(template_match: re.Match[str]) -> str:
        said: Any = {"item": item, "sample": sample}
        for name, place in STEP.findall(template_match[1]):
            try:
                said = said[int(place)] if place else said[name]
            except (KeyError, IndexError, TypeError) as error:
                raise MissingValue(template_match[1][:60]) from error
        return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)

    return TEMPLATE.sub(value, template)


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else content["text"]


def _are_messages(given: Any) -> bool:
    try:
        return bool(given) and all(isinstance(_text(each), str) and isinstance(each["role"], str) for each in given)
    except (KeyError, TypeError):
        return False


def formula_problem(formula: Any, names: Mapping[str, Any]) -> str | None:
    """What a formula has that is not known; None for nothing."""
    try:
        calculate(ast.parse(formula, mode="eval").body, dict.fromkeys(names, 0.5))
    except (ArithmeticError, ValueError) as error:
        return None if not isinstance(error, UnicodeError) else "has a formula that cannot be read"
    except KeyError as error:
        known = f"its graders, numbers, + - * / ** and {', '.join(FUNCTIONS)}"
        return f"has a formula with {error.args[0]}, and only {known} are known"
    except (SyntaxError, TypeError, RecursionError, MemoryError):
        return "has no formula in `calculate_output` that can be read"
    return None


def calculate(node: ast.expr, values: Mapping[str, float]) -> float:
    """The value of a formula's tree. Raises KeyError for what is not known."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in ARITHMETIC:
            return ARITHMETIC[type(op)](calculate(operand, values))
        case ast.BinOp(op=op, left=left, right=right) if type(op) in ARITHMETIC:
            return ARITHMETIC[type(op)](calculate(left, values), calculate(right, values))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return float(FUNCTIONS[name](*(calculate(each, values) for each in args)))
    raise KeyError(type(node).__name__)
