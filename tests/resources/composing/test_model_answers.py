"""A teacher in process: the same rows, counts, preferences and kept answers as from an endpoint."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from model_ops.operations.sample_answers import SCHEMA
from resources.composing.teachers.answer_store import AnswerStore
from resources.composing.teachers.endpoint_answers import TeacherError
from resources.composing.teachers.model_answers import PROMPTS, ModelTeacher
from resources.composing.teachers.settings import TeacherSettings
from resources.composing.teachers.teacher_answers import build_teacher_answers
from tests.resources.composing.test_rejection_sampling import sums
from tests.resources.composing.test_teacher_answers import dataset_of


class Worker:
    """Stands in for the worker: answers the n-th prompt of a question with the n-th text; None: a failure."""

    def __init__(self, *texts):
        self.texts, self.asked, self.settings = texts, [], None

    def run(self, prompts, output, settings):
        table = pq.read_table(prompts / "prompts.parquet")
        assert table.schema.equals(PROMPTS)
        rows, turn = [], {}
        for row in table.to_pylist():
            question = json.loads(row["messages"])[-1]["content"]
            number = turn[question] = turn.get(question, -1) + 1
            said = self.texts[number % len(self.texts)]
            rows.append({"key": row["key"],
                    "message": said and json.dumps({"role": "assistant", "content": said}),
                    "failure": "" if said else "cut by max_tokens",
                    "finish_reason": "stop" if said else "length", "prompt_tokens": 5, "answer_tokens": 3})  # fmt: skip
        self.asked.append(rows)
        self.settings = settings
        output.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), output / "answers.parquet")


def build(home, rows, worker, digest="d1", **settings):
    dataset = dataset_of(home / "sft", rows)
    given = TeacherSettings(**{"base": str(home / "big"), "licence": "mit", **settings})
    with AnswerStore(home / "kept.jsonl") as kept:
        return build_teacher_answers(dataset, home / "out", given, kept, model=ModelTeacher(digest, worker.run))


def test_rejection_sampling_in_process(tmp_path):
    rows = [sums("a", "6 x 7?", "It is 42."), sums("b", "3 + 4?", "7"), sums("c", "hello", "hi")]
    worker = Worker("so 41", "that makes 42", None, "so 41")
    settings = {
        "answers": 4, "verify": {"kind": "number"}, "max_tokens": 9, "temperature": 0.6, "request": {"top_k": 5}, "seed": 3,
    }  # fmt: skip
    report = build(tmp_path, rows, worker, **settings)
    assert worker.settings == {
        "temperature": 0.6, "top_p": 1.0, "request": {"top_k": 5}, "max_new_tokens": 9, "batch_size": 64, "seed": 3,
    }  # fmt: skip
    assert len(worker.asked[0]) == len({row["key"] for row in worker.asked[0]}) == 12
    learnt = {
        row["row_id"]: json.loads(row["messages"])[-1]["content"]
        for row in pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    }
    assert learnt["a"] == "that makes 42" and "b" not in learnt and "c" in learnt
    assert (report.answered, report.reused, report.rejected_rows, report.rejected_answers, report.preferences) == (
        2, 0, 1, 5, 1,
    )  # fmt: skip
    assert report.cost == 0 and report.prompt_tokens == 60
    told = pq.read_table(tmp_path / "out" / "requests.parquet").to_pylist()
    assert {row["model"] for row in told} == {"big"} and sum(row["failure"] == "cut by max_tokens" for row in told) == 3
    [pair] = pq.read_table(tmp_path / "out" / "preferences.parquet").to_pylist()
    assert json.loads(pair["rejected"])[0]["content"] == "so 41"
    again = build(tmp_path, rows, worker, **settings)
    assert len(worker.asked) == 1 and again.reused == 2  # nothing is computed again
    for other in ({"digest": "d2"}, {"seed": 4}):
        build(tmp_path, rows, worker, **{**settings, **other})
        assert len(worker.asked[-1]) == 12
    build(tmp_path, rows, worker, **{**settings, "answers": 5})
    assert len(worker.asked[-1]) == 3  # the missing ones


def test_no_empty_dataset_is_written_where_all_are_rejected_or_cut(tmp_path):
    rows = [sums("a", "6 x 7?", "42"), sums("b", "3 + 4?", "7")]
    with pytest.raises(TeacherError, match="no answer to any of 2 rows reached the least score 1"):
        build(tmp_path, rows, Worker("41", None), answers=2, verify={"kind": "number"}, most_failed=1)
    with pytest.raises(TeacherError, match=r"2 of 2 rows have no usable answer \(2 cut by max_tokens\)"):
        build(tmp_path, rows, Worker(None), most_failed=0.5, seed=1)
    assert not list((tmp_path / "out").glob("*.parquet"))


@pytest.mark.parametrize(("values", "said"), [
    ({"base": "big", "base_url": "http://localhost:1/v1"}, "one teacher answers: leave one of them out"),
    ({"base": "big", "model": "m"}, "model is for a teacher at an endpoint"),
    ({"base": "big", "price": {"input": 1, "output": 1}}, "price is for a teacher at an endpoint"),
    ({"base": "big", "request": {"stop": ["a"]}}, "request holds stop, which the built-in generator does not know"),
    ({"base": "big", "logprobs": 5}, "log-probabilities come from endpoints: leave logprobs out"),
    ({"base": "sft"}, "set trains to student"),
    ({}, "base_url and model are missing: give base_url and model"),
    ({"base_url": "http://localhost:1/v1"}, "model is missing"),
    ({"base_url": "http://localhost:1/v1", "model": "m", "batch_size": 3}, "batch_size is for a teacher in process"),
])  # fmt: skip
def test_wrong_combinations_are_refused(values, said):
    with pytest.raises(ValidationError, match=said):
        TeacherSettings(licence="mit", **values)
