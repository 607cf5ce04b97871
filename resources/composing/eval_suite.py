"""Reads evaluation suites into items.parquet, which curation keeps out of the training rows, and tasks.jsonl, to ask. A
question with several turns (Spec-Bench, MT-bench) becomes one item per turn, since each turn alone reveals the question.

    format      keys of a record
    jsonl       a prompt and optionally an answer under their usual names (eval_tasks.py)
    gsm8k       question, answer
    humaneval   task_id, prompt, canonical_solution
    spec_bench  question_id, turns, optionally reference
    bfcl        id, question, function; accepted calls in ground_truth or in the file `answers`
    others      published_suites.py
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, model_validator

from model_ops.chat_apis import json_text, whole
from model_ops.files import write_text
from model_ops.tasks import Item
from resources.composing.eval_tasks import (
    ANSWERS,
    PROMPTS,
    EvalTaskError,
    Task,
    messages_of,
    notes_on_keys,
    task_item,
    unread_keys,
)
from resources.composing.published_suites import LAYOUTS, layout_of
from resources.curating import EVAL_ITEMS
from resources.records import dialect_of
from resources.sources import Uri

NO_COLUMNS = {"messages", "prompt", "tools", "function", "chosen", "rejected", "request", "verifier"}
"""Keys of a record that are its prompt, or that a row has in a form of its own."""
IDS = ("item_id", "id", "task_id", "question_id")


MOST_NAMED = 5
"""Records that an error names, of those with the same fault."""


class EvalSuiteError(Exception):
    """An evaluation file cannot be read in its format; the message names file and record."""


class EvalSettings(BaseModel):
    """One evaluation suite: training rows must not contain its items, and the evaluation asks those that it can score."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    uri: Uri = Field(min_length=1, description="File, or pattern such as ./evals/*.jsonl")
    format: Literal[
        "auto", "jsonl", "gsm8k", "humaneval", "spec_bench", "bfcl", "xstest", "strongreject", "harmbench", "do_not_answer",
        "advbench", "mbpp", "gsm_plus", "bbq", "ruler", "tensor_trust",
    ] = Field("auto", description="Layout of the records; auto looks at the first")  # fmt: skip
    task: Task = Field(
        "auto",
        description="How answers are scored. auto: number for gsm8k, unit_tests for humaneval, function_call for bfcl, as "
        "published for the other suites that are known, nothing for jsonl. none: the items are only kept out of the training "
        "rows. record: an environment or an agent gets the whole record; only under datasets.rl_prompts",
    )
    answers: Uri | None = Field(None, description="Second file of format bfcl, with the accepted calls under the same ids")

    @model_validator(mode="after")
    def _answers_are_calls(self) -> Self:
        if self.answers is not None and self.format not in ("auto", "bfcl"):
            raise ValueError(f"answers names the accepted calls of format bfcl, and format is {self.format}: leave answers out")
        return self


def build_eval_suite(
    evals: dict[str, EvalSettings], output: Path, keep_keys: bool = False, notes: list[str] | None = None
) -> dict[str, int]:
    """Writes `output`/items.parquet and returns the items of each suite. keep_keys: tasks have their record's other keys, as
    `keys`. notes: gets a sentence for each file with keys that are read by nothing. Raises EvalSuiteError for a missing or
    empty file, a line that is not JSON, or a record without the fields of its format or task."""
    items: list[dict[str, Any]] = []
    tasks: list[dict[str, Any]] = []
    counts = {}
    for suite, settings in sorted(evals.items()):
        before, tasks_before = len(items), len(tasks)
        kind: str = settings.format
        accepted = _accepted_calls(settings.answers) if settings.answers else {}
        unread: Counter[str] = Counter()
        misfits: dict[str, list[str]] = {}
        for number, (place, record) in enumerate(records(settings.uri), start=1):
            if kind == "auto":
                kind = _guess(record)
            own, task, part = _as_asked(kind, record, settings.task, place)
            of_record = _items(suite, "jsonl" if kind in LAYOUTS else kind, own, number, place)
            items.extend(of_record)
            unread.update(unread_keys(record) if kind in ("jsonl", "gsm8k") and settings.task != "record" else ())
            if len(of_record) == 1:  # the later turns of a question need the model's earlier answers
                keys = {"keys": {key: value for key, value in record.items() if key not in NO_COLUMNS}} if keep_keys else {}
                try:
                    name = f"{suite}-{part}" if part and not keep_keys else suite
                    asked = _tasks(name, task, kind, own, of_record[0], place, accepted)
                except EvalTaskError as error:
                    misfits.setdefault(str(error).removeprefix(f"{place}: "), []).append(place)
                    continue
                tasks.extend({**task.model_dump(mode="json"), **keys} for task in asked)
        if misfits:
            raise EvalSuiteError(f"{suite}: {'; '.join(_misfit(why, places, number) for why, places in misfits.items())}")
        counts[suite] = len(items) - before
        if notes is not None:
            notes.extend(notes_on_keys(suite, unread))
        if not counts[suite]:
            raise EvalSuiteError(f"{suite}: {settings.uri} holds no items")
        if keep_keys and len(tasks) == tasks_before:
            raise EvalSuiteError(
                f"{suite}: {settings.uri} has nothing that verifies an answer as `task: {settings.task}`; set `task` to what "
                "its records bring, such as number or exact"
            )
    output.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(items, schema=EVAL_ITEMS), output / "items.parquet", compression="zstd")
    write_text(output / "tasks.jsonl", "".join(f"{json_text(task)}\n" for task in tasks))
    return counts


def _as_asked(kind: str, record: dict[str, Any], task: Task, place: str) -> tuple[dict[str, Any], Task, str]:
    """A record of a published layout as `jsonl` has it, its task and its part; others as they are."""
    if kind not in LAYOUTS or task == "record":
        return record, task, ""
    layout = LAYOUTS[kind]
    if not layout.fits(record):
        lists = f", and lists: {', '.join(sorted(layout.lists))}" if layout.lists else ""
        wanted = f"{', '.join(sorted(layout.keys))}{lists}"
        raise EvalSuiteError(f"{place}: format {kind} needs the keys {wanted}; its keys are {', '.join(record) or 'none'}")
    try:
        read = layout.read(record)
    except (ValueError, KeyError, IndexError) as error:
        raise EvalSuiteError(f"{place}: format {kind} cannot read it ({type(error).__name__})") from error
    return read.record, read.task if task == "auto" or read.task == "none" else task, read.part


def records(uri: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each record of JSON Lines, JSON-array, CSV or TSV files, with its position for error messages."""
    try:
        files = fsspec.open_files(uri, "rt", compression="infer", encoding="utf-8-sig")
        files.sort(key=lambda file: file.path)
        if not files:
            raise FileNotFoundError(uri)
        for file in files:
            with file as lines:
                text = lines.read()
            is_table = not {".csv", ".tsv"}.isdisjoint(map(str.lower, Path(file.path).suffixes))
            yield from (_rows_of if is_table else _records_of)(text, file.path)
    except FileNotFoundError as error:
        raise EvalSuiteError(f"there is no file {uri}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise EvalSuiteError(f"{uri} cannot be read as text: {type(error).__name__}: {error}") from error


def _rows_of(text: str, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of a CSV or TSV file; values are texts."""
    dialect = dialect_of(text.encode("utf-8", "surrogateescape"), whole=True, named=True)
    if dialect is None:
        raise EvalSuiteError(f"{path} is no table of comma-separated values, which its name says")
    rows, number = filter(any, islice(dialect.rows(io.StringIO(text, newline="")), dialect.skipped, None)), 0
    try:
        header = [name.strip() for name in next(rows, [])]
        for number, row in enumerate(rows, start=1):
            yield f"{path} record {number}", dict(zip(header, row, strict=False))
    except csv.Error as error:
        raise EvalSuiteError(f"{path} record {number + 1} cannot be read as CSV: {error}") from error


def _records_of(text: str, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if text.lstrip().startswith("["):
        try:
            parsed = [(f"{path} record {number}", record) for number, record in enumerate(json.loads(text), start=1)]
        except ValueError as error:
            raise EvalSuiteError(f"{path} begins like a JSON array but is not valid: {error}") from error
    else:
        parsed = []
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                try:
                    parsed.append((f"{path} line {number}", json.loads(line)))
                except ValueError as error:
                    raise EvalSuiteError(f"{path} line {number} is not JSON: {error}") from error
    for place, record in parsed:
        if not isinstance(record, dict):
            raise EvalSuiteError(f"{place} is not a JSON object")
        yield place, record


def _tasks(
    suite: str, task: Task, kind: str, record: dict[str, Any], item: dict[str, Any], place: str, accepted: dict[str, Any]
) -> list[Item]:
    given = item["item_id"], item["prompt"], item["answer"]
    asked = task_item(suite, task, kind, json.loads(json_text(record)), *given, place, accepted.get(item["item_id"]))
    return [] if asked is None else [asked]


def _misfit(why: str, places: list[str], records: int) -> str:
    if len(places) == 1:
        return f"{places[0]}: {why}"
    more = f" and {len(places) - MOST_NAMED:,} more" if len(places) > MOST_NAMED else ""
    return (
        f"{why}, which {len(places):,} of {records:,} records do not have ({', '.join(places[:MOST_NAMED])}{more}): leave them "
        "out, or put them into a file with a task of its own"
    )


def _accepted_calls(uri: str) -> dict[str, Any]:
    return {str(record.get("id")): record.get("ground_truth") for _, record in records(uri)}


def _guess(record: dict[str, Any]) -> str:
    if (published := layout_of(record)) is not None:
        return published
    if "turns" in record:
        return "spec_bench"
    if "canonical_solution" in record:
        return "humaneval"
    question = record.get("question")
    if isinstance(question, list) and ("function" in record or any(isinstance(turn, list) for turn in question)):
        return "bfcl"
    if isinstance(record.get("question"), str) and isinstance(record.get("answer"), str) and "####" in record["answer"]:
        return "gsm8k"
    return "jsonl"


def _items(suite: str, kind: str, record: dict[str, Any], number: int, place: str) -> list[dict[str, Any]]:
    pairs: list[tuple[str, str | None]]
    identity = next((whole(str(record[name])) for name in IDS if record.get(name) is not None), str(number))
    if kind == "gsm8k":
        pairs = [(_text(record, "question", kind, place), _text(record, "answer", kind, place))]
    elif kind == "humaneval":
        pairs = [(_text(record, "prompt", kind, place), _text(record, "canonical_solution", kind, place))]
    elif kind == "bfcl":
        pairs = [(_bfcl_prompt(record, place), None)]
    elif kind == "spec_bench":
        turns = record.get("turns")
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
            raise EvalSuiteError(f"{place}: format spec_bench needs `turns`, a list of texts")
        answers = record.get("reference")
        answers = answers if isinstance(answers, list) else []
        pairs = [
            (turn, answers[at] if at < len(answers) and isinstance(answers[at], str) else None) for at, turn in enumerate(turns)
        ]
    else:
        pairs = [_jsonl_pair(record, place)]
    many = len(pairs) > 1
    return [
        {
            "suite": suite,
            "item_id": f"{identity}/{at}" if many else identity,
            "prompt": whole(prompt),
            "answer": None if answer is None else whole(answer),
        }
        for at, (prompt, answer) in enumerate(pairs, start=1)
    ]


def _bfcl_prompt(record: dict[str, Any], place: str) -> str:
    turns = record.get("question")
    said = (
        [
            message.get("content")
            for turn in turns
            if isinstance(turn, list)
            for message in turn
            if isinstance(message, dict) and message.get("role") == "user"
        ]
        if isinstance(turns, list)
        else []
    )
    texts = [text for text in said if isinstance(text, str) and text.strip()]
    if not texts:
        raise EvalSuiteError(f"{place}: format bfcl needs `question`, a list of turns with a user's message")
    return "\n".join(texts)


def _text(record: dict[str, Any], name: str, kind: str, place: str) -> str:
    if not isinstance(record.get(name), str) or not record[name].strip():
        keys = ", ".join(record) or "none"
        raise EvalSuiteError(f"{place}: format {kind} needs `{name}`, a text; its keys are {keys}")
    return record[name]


def _jsonl_pair(record: dict[str, Any], place: str) -> tuple[str, str | None]:
    texts = {name: value for name, value in record.items() if _is_text(value)}
    prompt = next((texts[name] for name in PROMPTS if name in texts), None)
    of_verl = record["reward_model"] if isinstance(record.get("reward_model"), dict) else {}
    said = {**of_verl, **record}
    answers = {name: str(said[name]) for name in ANSWERS if type(said.get(name)) in (int, float) or _is_text(said.get(name))}
    answer = next(iter(answers.values()), None)
    if isinstance(record.get("instruction"), str) and isinstance(record.get("input"), str):
        prompt = f"{record['instruction']}\n{record['input']}".strip()
    if prompt is None and (messages := messages_of(record)) is not None:
        users = [text for message in messages if message["role"] == "user" and (text := _text_of(message))]
        prompt = "\n".join(users) or None
        if answer is None and messages[-1]["role"] == "assistant":
            answer = _text_of(messages[-1]) or None
    if prompt is None:
        raise EvalSuiteError(
            f"{place}: no prompt found; one of {', '.join(PROMPTS)} or messages is expected, with a text or a list of messages "
            f"of which a user's has text; its keys are {', '.join(record) or 'none'}"
        )
    return prompt, answer


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and _is_text(part.get("text")))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
