"""Operation sample_answers: seeded answers as messages, each computed once; prompts and models that cannot be used are told."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_models import write_target

from model_ops.decoding.decode_loop import decode
from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.models.model_directory import load_tokenizer
from model_ops.operations import quantize, sample_answers
from model_ops.operations.sample_answers import run

COLUMNS = pa.schema(
    [*((name, pa.string()) for name in ("key", "messages", "tools", "request")), ("ts", pa.timestamp("us", tz="UTC"))]
)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    place = tmp_path_factory.mktemp("sample") / "target"
    write_target(place, layers=2)
    return place


def write_prompts(folder, questions):
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"key": key, "messages": json.dumps([{"role": "user", "content": said}])} for key, said in questions.items()]
    pq.write_table(pa.Table.from_pylist(rows, schema=COLUMNS), folder / "prompts.parquet")
    return folder


def job(target, prompts, output, **settings):
    return Job(
        operation="sample_answers",
        output=output,
        inputs={"model": target, "prompts": prompts},
        settings={"max_new_tokens": 200, "batch_size": 2, "temperature": 2.0, **settings},
    )


def told(output):
    return {row["key"]: row for row in pq.read_table(output / "answers.parquet").to_pylist()}


def test_answers_follow_their_keys_and_an_answer_without_an_end_is_none(target, tmp_path):
    prompts = write_prompts(tmp_path / "in", {f"{name}#{number}": name for name in "ab" for number in range(6)})
    run(job(target, prompts, tmp_path / "one"), Progress())
    run(job(target, write_prompts(tmp_path / "some", {"b#4": "b", "a#1": "a"}), tmp_path / "two", batch_size=1), Progress())
    found = told(tmp_path / "one")
    assert list(found) == [f"{name}#{number}" for name in "ab" for number in range(6)]
    assert told(tmp_path / "two") == {key: found[key] for key in ("b#4", "a#1")}  # whatever shares the batch
    ended = [json.loads(row["message"]) for row in found.values() if row["message"]]
    cut = [row for row in found.values() if row["failure"] == "cut by max_tokens"]
    assert ended and all(said["role"] == "assistant" and "<|im_end|>" not in said["content"] for said in ended)
    assert len({said["content"] for said in ended}) == len(ended) > 1
    assert all(row["finish_reason"] == "length" and row["answer_tokens"] == 200 and row["message"] is None for row in cut)
    other = tmp_path / "other"
    run(job(target, prompts, other, seed=1), Progress())
    assert told(other) != found


def test_a_killed_run_computes_no_answer_twice(target, tmp_path, monkeypatch):
    prompts, asked = write_prompts(tmp_path / "in", {f"k{number}": f"q{number}" for number in range(20)}), []

    def counting(runner, ids, names, **how):
        asked.extend(names)
        return decode(runner, ids, names, **how)

    monkeypatch.setattr(sample_answers, "decode", counting)

    class StopsLater(Progress):
        def report(self, phase, done, total, unit, **numbers):
            self.stop_requested = done >= 8

    with pytest.raises(Stopped):
        run(job(target, prompts, tmp_path / "out", max_new_tokens=6), StopsLater())
    first = len(asked)
    run(job(target, prompts, tmp_path / "out", max_new_tokens=6), Progress())
    assert 0 < first < 20 and len(asked) == len(set(asked)) == 20 == len(told(tmp_path / "out"))


def test_a_prompt_beyond_the_context_is_left_out_and_a_quantized_model_answers(target, tmp_path):
    quantize.run(Job(operation="quantize", output=tmp_path / "int8", inputs={"model": target}, settings={}), Progress())
    prompts = write_prompts(tmp_path / "in", {"short": "hi", "long": "word " * 5_000})
    run(job(tmp_path / "int8", prompts, tmp_path / "out", max_new_tokens=4), Progress())
    found = told(tmp_path / "out")
    assert (
        found["long"]["failure"] == "the prompt is longer than the model's context" and found["long"]["prompt_tokens"] > 5_000
    )
    assert 1 <= found["short"]["answer_tokens"] <= 4


def test_a_model_that_cannot_be_asked_is_refused_before_its_weights(target, tmp_path):
    tokenizer = load_tokenizer(target)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "bare")
    prompts = write_prompts(tmp_path / "in", {"a": "hi"})
    with pytest.raises(ModelError, match="has no chat template, so it cannot be asked"):
        run(job(tmp_path / "bare", prompts, tmp_path / "out"), Progress())
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds an adapter, not a model"):
        run(job(tmp_path / "adapter", prompts, tmp_path / "out"), Progress())
