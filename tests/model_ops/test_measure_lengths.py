"""Operation measure_lengths: what each limit on length costs, and a sentence for each stage that could not work at all."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from tiny_models import run_job, write_dataset, write_target

from model_ops.decoding.prompts import read_prompts
from model_ops.documents.conversations import read_documents
from model_ops.documents.documents import Document, Documents
from model_ops.files.digests import vocabulary_digest
from model_ops.jobs import ModelError
from model_ops.operations import measure_lengths
from model_ops.operations.measure_lengths import Findings, compare_drafter, compare_evaluation, compare_training
from model_ops.operations.measure_lengths_settings import DrafterLimit, EvaluationLimit, TrainingLimit


def rows(*shapes: tuple[int, int]) -> Documents:
    """One document for each (tokens, index of the first token with a loss)."""
    return Documents.gather(
        Document(f"row-{place}", np.zeros(tokens, np.int32), np.arange(tokens) >= first)
        for place, (tokens, first) in enumerate(shapes)
    )


@pytest.mark.parametrize(("overflow", "cut", "lost"), [("truncate", 1, 1), ("split", 2, 0), ("drop", 0, 2)])
def test_max_length_costs_what_the_overflow_says(overflow, cut, lost):
    found = Findings()
    compare_training(
        "sft", "train", rows((10, 5), (30, 5), (30, 20)), TrainingLimit(max_length=20, overflow=overflow), None, found
    )
    [cost] = found.costs
    assert (cost.limit, cost.rows, cost.cut, cost.lost, found.problems) == ("sft.max_length", 3, cut, lost, [])


def test_a_stage_that_has_no_row_left_gets_a_sentence():
    found = Findings()
    compare_training("sft", "train", rows((30, 25), (40, 22)), TrainingLimit(max_length=20), None, found)
    assert found.problems == [
        "sft: none of 2 training rows has a token to learn within sft.max_length, 20: the earliest answer "
        "begins after 22 tokens; raise sft.max_length"
    ]


def test_rows_beyond_the_positions_are_one_sentence_for_a_stage_and_none_where_max_length_cuts_them():
    found = Findings()
    for split in ("train", "validation"):
        compare_training("sft", split, rows((10, 5), (30, 5)), TrainingLimit(max_length=40), 16, found)
        compare_training("student", split, rows((10, 5), (30, 5)), TrainingLimit(max_length=16), 16, found)
    assert found.problems == [
        "sft: 1 of 2 train rows have more tokens than the model's 16 positions, and sft.max_length is 40; set "
        "sft.max_length to at most 16"
    ]


def test_what_the_drafter_loses():
    found = Findings()
    limit = DrafterLimit(max_length=20, max_new_tokens=4)
    compare_drafter(np.array([5, 14, 18, 19, 40]), limit, 16, found)
    assert [(cost.limit, cost.cut, cost.lost) for cost in found.costs] == [("positions", 1, 3), ("speculator.max_length", 1, 2)]
    assert found.problems == []
    compare_drafter(np.array([16, 17]), limit, 16, found)
    assert found.problems == [
        "speculator: none of 2 training prompts leaves room for an answer within the model's 16 positions: the "
        "shortest has 16 tokens; take a base model with more positions, or set speculator.enabled to false"
    ]


def test_acceptance_that_cannot_be_measured_stops_only_a_release_with_its_gate():
    limit = EvaluationLimit(max_length=64, max_new_tokens=8)
    loose, strict = Findings(), Findings()
    compare_evaluation(rows((20, 5)), np.array([9]), limit, 16, loose)
    compare_evaluation(rows((20, 5)), np.array([9]), limit.model_copy(update={"acceptance_is_gated": True}), 16, strict)
    assert loose.problems == [] and loose.notes == [
        "evaluation: acceptance cannot be measured: none of 1 test prompts has at most 8 tokens, and the shortest has 9 (the model has "
        "16 positions, an answer takes 8)"
    ]
    assert strict.problems[0].startswith(loose.notes[0]) and "release.gates.acceptance_length to null" in strict.problems[0]


def test_test_rows_without_a_prompt_are_said_for_what_they_are():
    found = Findings()
    limit = EvaluationLimit(max_length=64, max_new_tokens=8, acceptance_is_gated=True)
    compare_evaluation(rows((20, 5)), np.array([], np.int64), limit, 16, found)
    assert found.problems == [
        "evaluation: acceptance cannot be measured: no test row has a prompt; rows of plain text and of token ids have none; add a "
        "source of conversations, or set release.gates.acceptance_length to null"
    ]


def test_a_test_split_without_an_answer_is_said():
    found = Findings()
    compare_evaluation(rows(), np.array([], np.int64), EvaluationLimit(max_length=64, max_new_tokens=8), 16, found)
    assert found.problems == ["evaluation: no test row has an answer to measure; raise datasets.sft.test_share or add sessions"]


def test_token_ids_of_another_tokenizer_are_refused(tmp_path):
    write_target(tmp_path / "base", layers=1)
    (tmp_path / "dataset").mkdir()
    measure_lengths.refuse_other_token_ids(tmp_path / "base", tmp_path / "dataset")
    (tmp_path / "dataset" / "tokenizers.json").write_text(json.dumps({"same": vocabulary_digest(tmp_path / "base")}))
    measure_lengths.refuse_other_token_ids(tmp_path / "base", tmp_path / "dataset")
    (tmp_path / "dataset" / "tokenizers.json").write_text(json.dumps({"packed": "0" * 64}))
    with pytest.raises(ModelError, match="seeds packed: its token ids are of another tokenizer than the base model's"):
        measure_lengths.refuse_other_token_ids(tmp_path / "base", tmp_path / "dataset")


def test_tokens_are_those_of_the_later_stages(tmp_path):
    tokenizer = write_target(tmp_path / "base", layers=1, max_position_embeddings=40)
    dataset = write_dataset(tmp_path / "dataset")
    settings = {
        "training": {"sft": {"max_length": 40}},
        "drafter": {"max_length": 64, "max_new_tokens": 8},
        "evaluation": {"max_length": 64, "max_new_tokens": 8},
    }
    metrics = run_job(measure_lengths, tmp_path / "out", {"model": tmp_path / "base", "dataset": dataset}, **settings)
    report = json.loads((tmp_path / "out" / "lengths.json").read_text())
    documents, counts = read_documents(dataset, "train", tokenizer, 40)
    longest = max(len(prompt.ids) for prompt in read_prompts(dataset, "test", tokenizer))
    costs = {
        (row["stage"], row["dataset_split"], row["limit"]): row
        for row in pq.read_table(tmp_path / "out" / "limits.parquet").to_pylist()
    }
    of_sft = costs["sft", "train", "sft.max_length"]
    assert (of_sft["cut"], of_sft["lost"]) == (counts["cut_rows"] - counts["dropped_rows"], counts["dropped_rows"])
    assert of_sft["cut"] > 0 and report["test_prompts"]["longest"] == longest
    assert metrics["positions"] == 40 and metrics["problems"] == report["problems"]
    assert len(documents) == of_sft["rows"] - of_sft["lost"]
