"""Operation generate: prompts are what stands before the last answer, answers are the target's, kills cost little."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
import torch
from tiny_models import write_dataset, write_target

from model_ops import generate
from model_ops.decoding.decode import decode
from model_ops.errors import ModelError
from model_ops.generate import SCHEMA, run
from model_ops.models.model_directory import load_tokenizer
from model_ops.models.target import end_of_text_ids, load_runner
from model_ops.progress import Progress, Stopped
from model_ops.specs import Job

torch.set_num_threads(1)  # the models are tiny: a second thread costs more than it gives


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("generate")
    write_target(root / "target")
    write_dataset(root / "dataset", rows=20)
    return root


def job(place, output, **settings):
    return Job(operation="generate", output=output, inputs={"target": place / "target", "dataset": place / "dataset"},
               settings={"max_new_tokens": 12, "batch_size": 4, **settings})


def test_every_prompt_is_answered_by_the_target(place, tmp_path):
    metrics = run(job(place, tmp_path, temperature=0), Progress())
    assert metrics["train_rows"] == 20 and metrics["validation_rows"] == 5
    table = pq.read_table(tmp_path / "train.parquet")
    assert table.schema.equals(SCHEMA)
    rows = {row["row_id"]: row for row in table.to_pylist()}
    assert len(rows) == 20
    tokenizer = load_tokenizer(place / "target")
    source = {row["row_id"]: row for row in pq.read_table(place / "dataset" / "train.parquet").to_pylist()}
    runner, eos_ids = load_runner(place / "target"), end_of_text_ids(place / "target")
    for row_id in ("train-3", "train-4"):
        messages = json.loads(source[row_id]["messages"])
        text = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, tokenize=False)
        row = rows[row_id]
        assert tokenizer.decode(row["prompt_token_ids"]) == text
        (answer,) = decode(runner, [row["prompt_token_ids"]], [row_id], eos_ids=eos_ids, temperature=0,
                           max_new_tokens=12)
        assert row["answer_token_ids"] == answer.tokens and row["finish_reason"] == answer.finish_reason
        assert row["session_id"] == source[row_id]["session_id"]
        assert row["prompt_shape"] == source[row_id]["prompt_shape"]
    ended = [row for row in rows.values() if row["finish_reason"] == "stop"]
    assert all(row["answer_token_ids"][-1] in eos_ids for row in ended)
    assert all(len(row["answer_token_ids"]) == 12 for row in rows.values() if row["finish_reason"] == "length")


def test_answers_do_not_depend_on_batches_and_choices_are_seeded(place, tmp_path):
    run(job(place, tmp_path / "a"), Progress())
    run(job(place, tmp_path / "b", batch_size=7), Progress())
    run(job(place, tmp_path / "c", prompts=6), Progress())
    run(job(place, tmp_path / "d", prompts=6), Progress())
    first, second, third, fourth = (
        {row["row_id"]: row["answer_token_ids"] for row in pq.read_table(tmp_path / name / "train.parquet").to_pylist()}
        for name in "abcd")
    assert first == second
    assert third == fourth and len(third) == 6 and third.items() <= first.items()


def test_a_stopped_run_continues_and_repeats_nothing(place, tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "CHUNK_BATCHES", 1)
    whole = tmp_path / "whole"
    run(job(place, whole), Progress())
    answered, answer_chunk, progress = [], generate.answer_chunk, Progress()

    def counting(runner, prompts, *rest):
        answered.extend(prompt.row_id for prompt in prompts)
        progress.stop_requested = len(answered) == 8
        return answer_chunk(runner, prompts, *rest)

    monkeypatch.setattr(generate, "answer_chunk", counting)
    with pytest.raises(Stopped):
        run(job(place, tmp_path / "cut"), progress)
    assert len(answered) == 8 and not (tmp_path / "cut" / "train.parquet").exists()
    run(job(place, tmp_path / "cut"), Progress())
    assert len(answered) == len(set(answered)) == 25
    for name in ("train.parquet", "validation.parquet"):
        assert pq.read_table(tmp_path / "cut" / name).equals(pq.read_table(whole / name))


def test_datasets_that_cannot_be_answered(place, tmp_path):
    with pytest.raises(ModelError, match=r"train\.parquet"):
        run(Job(operation="generate", output=tmp_path, inputs={"target": place / "target", "dataset": tmp_path}),
            Progress())
    write_target(tmp_path / "short", max_position_embeddings=8)
    with pytest.raises(ModelError, match="no prompt that fits the target's 8 positions"):
        run(Job(operation="generate", output=tmp_path,
                inputs={"target": tmp_path / "short", "dataset": place / "dataset"}), Progress())
