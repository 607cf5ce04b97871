"""A teacher in process as a source of answers: a worker generates all that are missing. They are kept in the lake under the
model's digest; finished chunks of a killed job, under `work`, are taken up by the next one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.files import renamed_when_complete
from model_ops.rendering import LEARNT_REQUEST
from resources.composing.teachers.answer_store import AnswerRequest, AnswerStore, StoredAnswer, answer_requests
from resources.composing.teachers.settings import TeacherSettings

ROWS_AT_A_TIME = 1_024
PROMPTS = pa.schema(
    [
        ("key", pa.string()),
        ("messages", pa.string()),
        ("tools", pa.string()),
        ("request", pa.string()),
        ("ts", pa.timestamp("us", tz="UTC")),
    ]
)


@dataclass(frozen=True)
class ModelTeacher:
    """digest: of the model's files. run(prompts, output, settings): runs operation sample_answers on it."""

    digest: str
    run: Callable[[Path, Path, dict[str, Any]], object]


class ModelAnswers:
    """Answers of a model that a worker runs."""

    def __init__(self, settings: TeacherSettings, store: AnswerStore, model: ModelTeacher, work: Path):
        self.settings, self.store, self.model, self.work = settings, store, model, work
        self.failed: Counter[str] = Counter()
        self.without_usage = 0

    def __enter__(self) -> ModelAnswers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def asked_of(self, row: dict[str, Any]) -> list[AnswerRequest]:
        """The requests of a row, one for each answer. The chat template sees what the logged request gave it."""
        said = _request_of(row)

        def body(messages: list[dict[str, Any]], tools: Any, extra: dict[str, Any]) -> dict[str, Any]:
            return {"messages": messages, "tools": tools, "request": said, "ts": row.get("ts")}

        return answer_requests(
            row, self.settings, body, of_model={"digest": self.model.digest, "seed": self.settings.seed, "rendered_with": said}
        )

    def begin(self, asked: Callable[[], Iterator[AnswerRequest]]) -> set[str]:
        """Generates the answers that are not kept yet; returns their keys."""
        prompts, output = self.work / "prompts", self.work / "samples"
        missing = self._write_missing(asked(), prompts / "prompts.parquet")
        if not missing:
            return missing
        settings = {name: self.settings.sampling[name] for name in ("temperature", "top_p")}
        self.model.run(
            prompts,
            output,
            {
                **settings,
                "request": self.settings.request,
                "max_new_tokens": self.settings.max_tokens,
                "batch_size": self.settings.batch_size,
                "seed": self.settings.seed,
            },
        )
        with pq.ParquetFile(output / "answers.parquet") as file:
            for batch in file.iter_batches(ROWS_AT_A_TIME):
                self.store.keep_all((row["key"], self._answer(row)) for row in batch.to_pylist())
        return missing

    def answers(self, asked: Iterable[AnswerRequest]) -> dict[str, StoredAnswer]:
        """Answers of requests that `begin` did not see: none."""
        return {}

    def _answer(self, row: dict[str, Any]) -> StoredAnswer:
        return StoredAnswer(
            self.settings.name,
            json.loads(row["message"]) if row["message"] else None,
            row["failure"],
            row["finish_reason"],
            row["prompt_tokens"],
            row["answer_tokens"],
            0.0,
        )

    def _write_missing(self, asked: Iterator[AnswerRequest], path: Path) -> set[str]:
        path.parent.mkdir(parents=True, exist_ok=True)
        seen: set[str] = set()
        with renamed_when_complete(path) as temporary, pq.ParquetWriter(temporary, PROMPTS, compression="zstd") as writer:
            rows: list[dict[str, Any]] = []
            for each in asked:
                if each.key in seen or self.store.find(each.key) is not None:
                    continue
                seen.add(each.key)
                texts = {name: json.dumps(value) if value else None for name, value in each.body.items() if name != "ts"}
                rows.append({"key": each.key, **texts, "ts": each.body["ts"]})
                if len(rows) == ROWS_AT_A_TIME:
                    writer.write_table(pa.Table.from_pylist(rows, schema=PROMPTS))
                    rows = []
            writer.write_table(pa.Table.from_pylist(rows, schema=PROMPTS))
        return seen


def _request_of(row: dict[str, Any]) -> dict[str, Any]:
    own = json.loads(row["messages"])[-1].get(LEARNT_REQUEST) if row["messages"] else None
    request = own if isinstance(own, dict) else json.loads(row["request"]) if row.get("request") else {}
    return request if isinstance(request, dict) else {}
