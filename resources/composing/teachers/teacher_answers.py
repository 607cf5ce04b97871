"""Builds a dataset whose training rows end with a teacher's answers: sequence-level distillation (Kim and Rush, 2016, arXiv
1606.07947); that answer alone is learnt. Validation and test rows stay the log's, so losses compare with those of other runs.
`requests.parquet` says what became of every answer. With `answers` and `verify` the best of several is kept;
`preferences.parquet` has pairs of right and wrong ones. With `prompts` the training rows are those of `rl_prompts`, and what
each brings verifies its answers: rejection sampling, as of Hermes 4 (arXiv 2508.18255)."""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.files import bare, renamed_when_complete
from model_ops.jobs import counted
from resources.composing.dataset_schemas import LOGPROBS, PREFERENCES, REQUESTS, SFT_ROWS
from resources.composing.teachers.answer_store import (
    AnswerRequest,
    AnswerStore,
    StoredAnswer,
    prompt_of,
    to_be_answered,
    with_answer,
)
from resources.composing.teachers.endpoint_answers import EndpointAnswers, TeacherError
from resources.composing.teachers.model_answers import ModelAnswers, ModelTeacher
from resources.composing.teachers.settings import TeacherSettings
from resources.composing.teachers.token_logs import TokenLogs
from resources.composing.teachers.verify import AnswerCandidate, Verifier, choose, rejected
from resources.curating import JudgeSettings

Rows = list[dict[str, Any]]

ROWS_AT_A_TIME = 1_024


@dataclass
class TeacherReport:
    rows: int = 0
    """Training rows of the dataset."""
    answered: int = 0
    """Rows with the teacher's answer."""
    reused: int = 0
    """Of these, answered in an earlier run."""
    unchanged: int = 0
    """Rows without a conversation, which stay as they are."""
    beyond_max_rows: int = 0
    failed_rows: Counter[str] = field(default_factory=Counter)
    """Rows left out, by reason."""
    rejected_rows: int = 0
    """Rows left out because no answer reached the least score."""
    rejected_answers: int = 0
    """Answers below the least score."""
    unverifiable_rows: int = 0
    """Rows without anything to verify an answer with."""
    preferences: int = 0
    """Pairs of a kept and a rejected answer."""
    attempts_failed: dict[str, int] = field(default_factory=dict)
    """Failed attempts, repeated ones included."""
    prompt_tokens: int = 0
    answer_tokens: int = 0
    answers_without_usage: int = 0
    answers_with_logprobs: int = 0
    cost: float = 0.0
    """Cost of all answers that this dataset needed, in the currency of the prices."""

    def as_metrics(self) -> dict[str, Any]:
        metrics = {**vars(self), "failed_rows": dict(self.failed_rows), "kept_as_they_are": self.unchanged}
        del metrics["unchanged"]
        return metrics


class AnswerSource(Protocol):
    """Where answers come from."""

    @property
    def failed(self) -> Counter[str]:
        """Failed attempts by kind."""

    @property
    def without_usage(self) -> int:
        """Answers whose tokens are not known."""

    def asked_of(self, row: dict[str, Any]) -> list[AnswerRequest]:
        """The requests of a row, one for each answer; [] for a row without a conversation."""

    def begin(self, asked: Callable[[], Iterator[AnswerRequest]]) -> set[str]:
        """Prepares for all requests of the dataset; returns the keys of the answers that were made by this."""

    def answers(self, asked: Iterable[AnswerRequest]) -> dict[str, StoredAnswer]:
        """Answers to requests that have none yet, by key."""


def build_teacher_answers(
    dataset: Path,
    output: Path,
    settings: TeacherSettings,
    store: AnswerStore,
    tell: Callable[[str], None] = lambda said: None,
    judge: JudgeSettings | None = None,
    model: ModelTeacher | None = None,
    prompts: Path | None = None,
) -> TeacherReport:
    """Writes train, validation and test of the dataset into `output`, with the teacher's answers in train. judge: for
    verify.kind judge. model: for a teacher in process. prompts: rl_prompts, whose training rows are answered in place of the
    dataset's. Raises TeacherError where the teacher cannot be used, max_cost would be passed, or more than most_failed of the
    rows have no answer. Every answer is kept before the next step; a later run asks for none again."""
    output.mkdir(parents=True, exist_ok=True)
    report = TeacherReport()
    asked = (prompts or dataset) / "train.parquet"
    chosen = _drawn(asked, settings.max_rows)
    source = EndpointAnswers(settings, store) if model is None else ModelAnswers(settings, store, model, output / ".work")
    with source, _verifier(settings, judge, store) as verifier:
        new = source.begin(lambda: _all_asked(asked, source, chosen))
        teacher = _Teacher(source, settings, store, new, report, verifier)
        with ExitStack() as files:
            write = {
                name: _writer(files, output / f"{name}.parquet", schema)
                for name, schema in (
                    ("train", SFT_ROWS),
                    ("requests", REQUESTS),
                    *([("preferences", PREFERENCES)] if verifier else []),
                    *([("logprobs", LOGPROBS)] if settings.logprobs else []),
                )
            }
            for batch in _batches(asked):
                for name, rows in teacher.answer_rows(batch, chosen).items():
                    if name in write:
                        write[name].write_table(pa.Table.from_pylist(rows, schema=write[name].schema))
                tell(
                    f"{counted(report.answered, 'row')} answered, {sum(report.failed_rows.values()):,} without an answer, "
                    f"{report.rejected_rows:,} rejected, {report.rows:,} read"
                )
            teacher.refuse_too_many_failures()
        report.attempts_failed = dict(source.failed)
        report.answers_without_usage = source.without_usage
    for name in ("validation.parquet", "test.parquet", "rendering.json"):
        if (dataset / name).exists():
            shutil.copyfile(dataset / name, output / name)
    return report


class _Teacher:
    """Answers rows, batch by batch, with what is kept and the source. new: keys of the answers that this run made."""

    def __init__(
        self,
        source: AnswerSource,
        settings: TeacherSettings,
        store: AnswerStore,
        new: set[str],
        report: TeacherReport,
        verifier: Verifier | None,
    ):
        self.source, self.settings, self.store, self.new = source, settings, store, new
        self.report, self.verifier = report, verifier
        self._counted = set[str]()

    def answer_rows(self, batch: Rows, chosen: set[str] | None) -> dict[str, Rows]:
        """The rows of the dataset's files: train, requests and preferences."""
        requests = {
            row["row_id"]: request
            for row in batch
            if chosen is None or row["row_id"] in chosen
            if (request := self.source.asked_of(row))
        }
        all_requests = [request for several in requests.values() for request in several]
        answered = {request.key for request in all_requests if self.store.find(request.key) is not None}
        replies = self.source.answers(request for request in all_requests if request.key not in answered)
        before = answered - self.new
        candidates = self._scored(
            {
                row["row_id"]: (
                    row,
                    [
                        AnswerCandidate(number, request.key, self.store.find(request.key) or replies[request.key])
                        for number, request in enumerate(requests[row["row_id"]])
                    ],
                )
                for row in batch
                if row["row_id"] in requests
            }
        )
        files: dict[str, Rows] = {"train": [], "requests": [], "preferences": [], "logprobs": []}
        for row in batch:
            self.report.rows += 1
            if row["row_id"] in candidates:
                self._decide(row, candidates[row["row_id"]], before, files)
            elif prompt_of(row) is not None:
                self.report.beyond_max_rows += 1
            else:
                self.report.unchanged += 1
                files["train"].append(row)
        return files

    def _scored(self, rows: dict[str, tuple[dict[str, Any], list[AnswerCandidate]]]) -> dict[str, list[AnswerCandidate]]:
        if self.verifier is None:
            return {name: several for name, (_, several) in rows.items()}
        to_score = [(name, row, each) for name, (row, several) in rows.items() for each in several if each.answer.message]
        scores = self.verifier.scores([(row, each.answer.message) for _, row, each in to_score])
        score_of = {(name, each.sample): score for (name, _, each), score in zip(to_score, scores, strict=True)}
        return {
            name: [replace(each, score=score_of.get((name, each.sample))) for each in several]
            for name, (_, several) in rows.items()
        }

    def _decide(self, row: dict[str, Any], candidates: list[AnswerCandidate], before: set[str], files: dict[str, Rows]) -> None:
        report, verify = self.report, self.settings.verify
        best = choose(candidates, verify, self.settings.seed, row["row_id"])
        usable = [each for each in candidates if each.answer.message is not None]
        report.unverifiable_rows += verify is not None and bool(usable) and all(each.score is None for each in usable)
        if best is not None and best.answer.message is not None:
            report.answered += 1
            report.reused += best.key in before
            learnt = best.answer
            files["train"].append(with_answer(row, best.answer.message))
            if learnt.logprobs is not None:
                report.answers_with_logprobs += 1
                files["logprobs"].append(
                    {
                        "row_id": row["row_id"],
                        "prompt_tokens": learnt.prompt_tokens,
                        **TokenLogs.unpacked(learnt.logprobs).as_row(),
                    }
                )
        elif usable:
            report.rejected_rows += 1
        else:
            report.failed_rows[candidates[0].answer.failure] += 1
        about = {name: row[name] for name in ("row_id", "interaction_ids", "source")}
        for each in candidates:
            answer = each.answer
            if each.key not in self._counted:
                self._counted.add(each.key)
                report.prompt_tokens += answer.prompt_tokens
                report.answer_tokens += answer.answer_tokens
                report.cost += answer.cost
            why = answer.failure or None
            if verify is not None and each.score is not None and each.score < verify.least:
                report.rejected_answers += 1
                why = f"score {each.score:g} is below {verify.least:g}"
            files["requests"].append(
                {
                    **about,
                    "model": answer.model,
                    "request_sha256": each.key,
                    "sample": each.sample,
                    "score": each.score,
                    "kept": each is best,
                    "failure": why,
                    "finish_reason": answer.finish_reason,
                    "prompt_tokens": answer.prompt_tokens,
                    "answer_tokens": answer.answer_tokens,
                    "cost": answer.cost,
                    "answer": answer.message and json.dumps(answer.message),
                }
            )
        if best is None:
            return
        for each in rejected(candidates, best, verify):
            report.preferences += 1
            files["preferences"].append(
                {
                    **about,
                    "session_id": row["session_id"],
                    "prompt": json.dumps(json.loads(row["messages"])[:-1]),
                    "tools": row["tools"],
                    "request": row["request"],
                    "chosen": json.dumps([best.answer.message]),
                    "rejected": json.dumps([each.answer.message]),
                    "chosen_score": best.score,
                    "rejected_score": each.score,
                }
            )

    def refuse_too_many_failures(self) -> None:
        failed = sum(self.report.failed_rows.values())
        asked = self.report.answered + self.report.rejected_rows + failed
        if not asked:
            raise TeacherError(
                f"no training row of {self.settings.prompts} has a conversation that the teacher could answer: leave "
                "teacher out of the recipe"
            )
        said = ", ".join(f"{count:,} {reason}" for reason, count in self.report.failed_rows.most_common())
        if failed > self.settings.most_failed * asked:
            raise TeacherError(
                f"teacher: {failed:,} of {counted(asked, 'row')} have no usable answer ({said}), more than "
                f"most_failed ({self.settings.most_failed:g}); answers up to now are kept: mend the teacher "
                "and run again, raise max_tokens, or raise teacher.most_failed"
            )
        if failed == asked:
            raise TeacherError(
                f"teacher: none of {counted(asked, 'row')} has a usable answer ({said}); answers are kept: "
                "raise teacher.max_tokens where they were cut, or ask another model"
            )
        if self.settings.verify is not None and self.report.rejected_rows and not self.report.answered:
            raise TeacherError(
                f"teacher: no answer to any of {counted(asked, 'row')} reached the least score "
                f"{self.settings.verify.least:g}; answers are kept: look at them with another verify.kind or "
                "least_score, or ask another model"
            )


def _batches(path: Path) -> Iterator[list[dict[str, Any]]]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(ROWS_AT_A_TIME):
            yield [to_be_answered(row) if "verifier" in row else row for row in batch.to_pylist()]


def _all_asked(path: Path, source: AnswerSource, chosen: set[str] | None) -> Iterator[AnswerRequest]:
    for batch in _batches(path):
        for row in batch:
            if chosen is None or row["row_id"] in chosen:
                yield from source.asked_of(row)


def _verifier(
    settings: TeacherSettings, judge: JudgeSettings | None, store: AnswerStore
) -> AbstractContextManager[Verifier | None]:
    return nullcontext() if settings.verify is None else Verifier(settings.verify, judge, store)


def _writer(files: ExitStack, path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer whose file appears when `files` is left without an error."""
    temporary = files.enter_context(renamed_when_complete(path))
    return files.enter_context(pq.ParquetWriter(temporary, bare(schema), compression="zstd"))


def _drawn(path: Path, most: int | None) -> set[str] | None:
    """The rows to ask for, drawn by the hash of their ids; None: all."""
    names = pq.read_table(path, columns=["row_id"])["row_id"].to_pylist()
    if most is None or len(names) <= most:
        return None
    return set(sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:most])
