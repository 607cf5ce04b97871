"""Builds a dataset whose training rows end with a teacher's answers: sequence-level distillation (Kim and Rush, 2016,
arXiv 1606.07947).

    report = build_teacher_answers(sft_dataset_directory, output, settings, kept)

Of each training row the teacher answers what the last answer of the log answered; that answer alone is learnt (earlier ones
are context). Rows without a conversation (plain text, token ids) stay as they are. Validation and test rows stay the log's, so
losses compare with those of other runs. A row without a usable answer is left out, counted by reason. `requests.parquet` says
of every row what became of it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.atomic_files import renamed_when_complete
from model_ops.wording import counted
from resources.composing.datasets import SFT_ROWS
from resources.teaching.budget import Budget, BudgetError
from resources.teaching.endpoint import TeacherEndpoint, TeacherError
from resources.teaching.kept_answers import KeptAnswer, KeptAnswers, request_key
from resources.teaching.settings import TeacherSettings

Rows = list[dict[str, Any]]

ROWS_AT_A_TIME = 1_024
SENT = ("role", "content", "name", "tool_calls", "tool_call_id")
"""Keys of a message that the teacher sees."""

REQUESTS = pa.schema([
    ("row_id", pa.string()), ("interaction_ids", pa.list_(pa.string())), ("source", pa.string()), ("model", pa.string()),
    ("request_sha256", pa.string()), ("kept", pa.bool_()), ("failure", pa.string()), ("finish_reason", pa.string()),
    ("prompt_tokens", pa.int64()), ("answer_tokens", pa.int64()), ("cost", pa.float64()), ("answer", pa.string())])


@dataclass
class TeacherReport:
    """rows: training rows of the dataset. answered: with the teacher's answer. reused: of these, answered before.
    kept_as_they_are: without a conversation. failed_rows: left out, by reason. attempts_failed: repeated ones included. cost:
    of all answers that this dataset needed, in the currency of the prices."""

    rows: int = 0
    answered: int = 0
    reused: int = 0
    kept_as_they_are: int = 0
    beyond_max_rows: int = 0
    failed_rows: Counter[str] = field(default_factory=Counter)
    attempts_failed: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    answer_tokens: int = 0
    answers_without_usage: int = 0
    cost: float = 0.0

    def as_metrics(self) -> dict[str, Any]:
        return {**vars(self), "failed_rows": dict(self.failed_rows)}


@dataclass(frozen=True)
class Asked:
    """A row's request: its body, and the name that its answer is kept under."""

    body: dict[str, Any]
    key: str


def build_teacher_answers(dataset: Path, output: Path, settings: TeacherSettings, kept: KeptAnswers,
                          tell: Callable[[str], None] = lambda said: None) -> TeacherReport:
    """Writes train, validation and test of the dataset into `output`, with the teacher's answers in train.

    Raises TeacherError where the endpoint cannot be used, max_cost would be passed, or more than most_failed of the rows have
    no answer. Every answer is kept before the next step; a later run asks for none again.
    """
    output.mkdir(parents=True, exist_ok=True)
    report = TeacherReport()
    chosen = _drawn(dataset / "train.parquet", settings.max_rows)
    with TeacherEndpoint(settings) as endpoint:
        spent = kept.cost_of(asked.key for asked in _all_asked(dataset / "train.parquet", endpoint, chosen))
        teacher = _Teacher(endpoint, kept, Budget(settings.price, settings.max_cost, spent), report)
        with (renamed_when_complete(output / "train.parquet") as train,
              renamed_when_complete(output / "requests.parquet") as of,
              pq.ParquetWriter(train, SFT_ROWS, compression="zstd") as rows,
              pq.ParquetWriter(of, REQUESTS, compression="zstd") as answers):
            for batch in _batches(dataset / "train.parquet"):
                taught, told = teacher.answer_rows(batch, chosen)
                rows.write_table(pa.Table.from_pylist(taught, schema=SFT_ROWS))
                answers.write_table(pa.Table.from_pylist(told, schema=REQUESTS))
                tell(f"{counted(report.answered, 'row')} answered, {sum(report.failed_rows.values()):,} without an answer, "
                     f"{report.rows:,} read")
            teacher.refuse_too_many_failures()
        report.attempts_failed = dict(endpoint.failed)
        report.answers_without_usage = endpoint.without_usage
    for name in ("validation.parquet", "test.parquet", "rendering.json"):
        if (dataset / name).exists():
            shutil.copyfile(dataset / name, output / name)
    return report


class _Teacher:
    """Answers rows, batch by batch, with what is kept and the endpoint."""

    def __init__(self, endpoint: TeacherEndpoint, kept: KeptAnswers, budget: Budget, report: TeacherReport):
        self.endpoint, self.kept, self.budget, self.report = endpoint, kept, budget, report
        self.settings = endpoint.settings
        self._stop, self._counted = threading.Event(), set[str]()

    def answer_rows(self, batch: Rows, chosen: set[str] | None) -> tuple[Rows, Rows]:
        """The rows of the dataset, and what became of each row that was asked for."""
        wanted, report = {}, self.report
        for row in batch:
            if (asked := asked_of(row, self.endpoint)) is not None and (chosen is None or row["row_id"] in chosen):
                wanted[row["row_id"]] = asked
        before = {asked.key for asked in wanted.values() if self.kept.find(asked.key) is not None}
        replies = self._replies({asked.key: asked.body for asked in wanted.values() if asked.key not in before})
        taught, told = [], []
        for row in batch:
            report.rows += 1
            if row["row_id"] not in wanted:
                if _prompt_of(row) is not None:
                    report.beyond_max_rows += 1
                else:
                    report.kept_as_they_are += 1
                    taught.append(row)
                continue
            key = wanted[row["row_id"]].key
            answer = self.kept.find(key) or replies[key]
            report.reused += key in before and answer.message is not None
            if key not in self._counted:
                self._counted.add(key)
                report.prompt_tokens += answer.prompt_tokens
                report.answer_tokens += answer.answer_tokens
                report.cost += answer.cost
            if answer.message is None:
                report.failed_rows[answer.failure] += 1
            else:
                report.answered += 1
                taught.append(with_answer(row, answer.message))
            told.append({
                "row_id": row["row_id"], "interaction_ids": row["interaction_ids"], "source": row["source"],
                "model": answer.model, "request_sha256": key, "kept": answer.message is not None,
                "failure": answer.failure or None,
                "finish_reason": answer.finish_reason, "prompt_tokens": answer.prompt_tokens, "cost": answer.cost,
                "answer_tokens": answer.answer_tokens, "answer": answer.message and json.dumps(answer.message)})
        return taught, told

    def refuse_too_many_failures(self) -> None:
        failed = sum(self.report.failed_rows.values())
        asked = self.report.answered + failed
        if not asked:
            raise TeacherError("no training row of sft_dataset has a conversation that the teacher could answer: leave "
                               "teacher out of the recipe")
        if failed > self.settings.most_failed * asked:
            said = ", ".join(f"{count:,} {reason}" for reason, count in self.report.failed_rows.most_common())
            raise TeacherError(f"teacher: {failed:,} of {counted(asked, 'row')} have no usable answer ({said}), more than "
                               f"most_failed ({self.settings.most_failed:g}); answers up to now are kept: mend the endpoint "
                               "and run again, raise max_tokens, or raise teacher.most_failed")

    def _replies(self, bodies: dict[str, dict[str, Any]]) -> dict[str, KeptAnswer]:
        """Answers to requests, by key, each kept as soon as it is there. Stops all threads with the first error."""

        def answer(key: str) -> tuple[str, KeptAnswer | None]:
            try:
                return key, None if self._stop.is_set() else self._ask(key, bodies[key])
            except BaseException:
                self._stop.set()
                raise

        pool = ThreadPoolExecutor(self.settings.concurrency)
        try:
            found = list(pool.map(answer, bodies))
        except BudgetError as error:
            pool.shutdown(cancel_futures=True)  # the costs of what is on its way belong to the sentence
            raise TeacherError(
                f"teacher: the next answer could pass max_cost ({self.settings.max_cost:g}): {self.budget.spent:.4g} is spent, "
                f"and all answers are kept; raise teacher.max_cost, or lower teacher.max_rows or max_tokens") from error
        finally:
            self._stop.set()
            pool.shutdown(cancel_futures=True)
            self._stop.clear()
        if self.endpoint.gone:
            said = ", ".join(f"{count:,} {reason}" for reason, count in self.endpoint.failed.most_common())
            raise TeacherError(f"teacher: {self.settings.base_url} does not answer (attempts: {said}); answers up to now are "
                               "kept: run again when it is up")
        return {key: answer for key, answer in found if answer is not None}

    def _ask(self, key: str, body: dict[str, Any]) -> KeptAnswer:
        with self.budget.reserved(len(json.dumps(body)), self.settings.max_tokens) as bill:
            reply = self.endpoint.ask(body, bill)
        answer = KeptAnswer(self.settings.model, reply.message, reply.failure, reply.finish_reason, reply.prompt_tokens,
                            reply.answer_tokens, bill.cost)
        if not reply.mendable:
            self.kept.keep(key, answer)
        return answer


def asked_of(row: dict[str, Any], endpoint: TeacherEndpoint) -> Asked | None:
    """The request that a row's last answer answered; None for a row without a conversation."""
    messages = _prompt_of(row)
    if messages is None:
        return None
    tools = json.loads(row["tools"]) if row["tools"] else None
    said = json.loads(row["request"]) if row["request"] else {}
    extra = {name: said[name] for name in ("response_format",) if said.get(name)}
    settings = endpoint.settings
    key = request_key(settings.model, messages, tools, {**settings.sampling, **extra})
    return Asked(endpoint.body(messages, tools, extra), key)


def with_answer(row: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    """The row with another last answer, the only one that is learnt."""
    before = [{**said, "weight": 0} if said["role"] == "assistant" else said for said in json.loads(row["messages"])[:-1]]
    messages = json.dumps([*before, {**message, "weight": 1}], ensure_ascii=False)
    digest = hashlib.sha256(f"{messages}\n{row['tools'] or ''}".encode("utf-8", "surrogatepass")).hexdigest()
    return {**row, "messages": messages, "content_sha256": digest, "quality": None, "difficulty": None}


def _prompt_of(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    """What stands before a row's last answer, as an endpoint takes it; None if the row ends with no answer to learn."""
    messages = json.loads(row["messages"] or "[]")
    if len(messages) < 2 or messages[-1]["role"] != "assistant" or messages[-1].get("weight", 1) == 0:
        return None
    return [_sent(said) for said in messages[:-1]]


def _sent(message: dict[str, Any]) -> dict[str, Any]:
    sent = {name: message[name] for name in SENT if message.get(name) is not None}
    if "tool_calls" in sent:
        sent["tool_calls"] = [{**call, "type": "function", "function": {
            **call["function"], "arguments": _as_text(call["function"].get("arguments"))}} for call in sent["tool_calls"]]
    return sent


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})


def _batches(path: Path) -> Iterator[list[dict[str, Any]]]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(ROWS_AT_A_TIME):
            yield batch.to_pylist()


def _all_asked(path: Path, endpoint: TeacherEndpoint, chosen: set[str] | None) -> Iterator[Asked]:
    for batch in _batches(path):
        for row in batch:
            if (chosen is None or row["row_id"] in chosen) and (asked := asked_of(row, endpoint)) is not None:
                yield asked


def _drawn(path: Path, most: int | None) -> set[str] | None:
    """The rows to ask for, drawn by the hash of their ids; None: all."""
    names = pq.read_table(path, columns=["row_id"])["row_id"].to_pylist()
    if most is None or len(names) <= most:
        return None
    return set(sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:most])
