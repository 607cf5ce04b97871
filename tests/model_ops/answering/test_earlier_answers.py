"""Answers of an earlier version are taken again only for the same weights, prompt and sampling."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_ops.answering.sampling_parameters import Sampling
from model_ops.answering.served_answers import EarlierAnswers
from model_ops.files.digests import target_digest

SAMPLING = Sampling(temperature=0.7)


@pytest.fixture
def target(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "model.safetensors").write_bytes(b"weights")
    return tmp_path / "target"


@pytest.fixture
def directory(tmp_path, target):
    (tmp_path / "answers").mkdir()
    rows = pa.table(
        {
            "row_id": ["a", "b"], "turn": pa.array([0, 1], pa.int32()), "origin": ["generated", "served"],
            "prompt_token_ids": [[1, 2], [3]], "answer_token_ids": [[7, 8], [9]], "finish_reason": ["stop", "length"],
            "sampling": [SAMPLING.as_json()] * 2,
        }
    )  # fmt: skip
    pq.write_table(
        rows.replace_schema_metadata({"target_digest": target_digest(target)}), tmp_path / "answers" / "train.parquet"
    )
    return tmp_path / "answers"


def test_the_same_prompt_has_its_answer(directory, target):
    found = EarlierAnswers.read(directory, target).reply("a", 0, [1, 2], SAMPLING)
    assert (found.tokens, found.finish_reason) == ([7, 8], "stop")


def test_another_prompt_turn_or_sampling_has_none_and_served_answers_come_from_the_log(directory, target):
    earlier = EarlierAnswers.read(directory, target)
    assert earlier.reply("a", 0, [1, 2, 3], SAMPLING) is None
    assert earlier.reply("a", 1, [1, 2], SAMPLING) is None
    assert earlier.reply("a", 0, [1, 2], replace(SAMPLING, temperature=0.8)) is None
    assert earlier.reply("b", 1, [3], SAMPLING) is None


def test_answers_of_other_weights_are_none(directory, target):
    (target / "model.safetensors").write_bytes(b"others!")
    assert EarlierAnswers.read(directory, target).reply("a", 0, [1, 2], SAMPLING) is None
    assert EarlierAnswers.read(None, target).reply("a", 0, [1, 2], SAMPLING) is None
