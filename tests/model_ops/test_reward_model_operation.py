"""Operation `reward_model`: what it learns, saves, measures and refuses; killed runs and meshes."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from preference_rows import asked, pair, said, write_preferences
from transformers import AutoModelForSequenceClassification

from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.operations import reward_model
from model_ops.rendering.row import Row
from model_ops.rewards.reward_model import RewardModel
from model_ops.rewards.reward_record import RewardRecord

DAY = datetime(2026, 6, 1, tzinfo=UTC)
SETTINGS = {"steps": 6, "learning_rate": 3e-3, "tokens_per_step": 1_024, "max_length": 192, "precision": "float32"}


@pytest.fixture(autouse=True)
def exact_products(monkeypatch):
    """A grader computes in the faster precision of the machine; what is compared here is float32."""
    monkeypatch.setattr("model_ops.rewards.reward_model.concrete_precision", lambda precision, device: "float32")


def rows(first, count, source="edited", days=0):
    return [
        pair(
            i,
            session_id=f"s{i // 2}",
            ts=DAY + timedelta(days=days),
            reason=source,
            confidence=0.9,
            margin=None if i % 2 else 0.5,
        )
        for i in range(first, first + count)
    ]


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write_preferences(folder, rows(0, 24))
    write_preferences(folder, rows(24, 24), split="validation")
    write_preferences(folder, rows(48, 12) + rows(60, 8, "rated", days=1), split="test")
    return folder


def job(model, dataset, output, **changes):
    return Job(
        operation="reward_model", output=output, inputs={"model": model, "dataset": dataset}, settings={**SETTINGS, **changes}
    )


@pytest.fixture(scope="session")
def trained(tiny_model, pairs, tmp_path_factory):
    output = tmp_path_factory.mktemp("reward") / "model"
    return output, reward_model.run(job(tiny_model, pairs, output), Progress())


def test_it_learns_and_is_measured_on_held_out_pairs(trained):
    output, metrics = trained
    steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert {"validation_loss", "validation_accuracy", "accuracy", "chosen_score", "rejected_score"} <= steps[-1].keys()
    assert metrics["held_out_accuracy"] > 0.9 and metrics["may_grade"] is True
    assert metrics["pairs"] == 24 and metrics["graded_pairs"] == 12 and metrics["later_pairs"] == 8
    record = RewardRecord.read(output)
    assert record.held_out["accuracy"].keys() == {"all", "edited", "rated", "later"}
    assert record.held_out["accuracy"]["rated"]["pairs"] == 8 and record.held_out["accuracy"]["all"]["sessions"] == 10


def test_the_record_is_of_the_weights_as_they_were_saved(trained, pairs):
    """Scores of the saved directory, alone and in transformers, give the accuracy, mean and temperature of the record."""
    output, metrics = trained
    grader = RewardModel.load(output)
    test = pq.read_table(pairs / "test.parquet").to_pylist()
    answers = [
        Row(row["row_id"], json.loads(row["prompt"]) + json.loads(row[side])) for row in test for side in ("chosen", "rejected")
    ]
    found = np.array(grader.scores(answers).values)
    assert found.mean() == pytest.approx(metrics["score_mean"], abs=1e-5)
    assert found.std() == pytest.approx(metrics["score_deviation"], abs=1e-5)
    assert (found[::2] > found[1::2]).mean() == metrics["held_out_accuracy"]
    classifier = AutoModelForSequenceClassification.from_pretrained(output, dtype=torch.float32)
    text = grader.tokenizer.apply_chat_template(answers[0].messages, tokenize=False)
    with torch.no_grad():
        logits = classifier(**grader.tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits
    assert logits.shape == (1, 1) and float(logits) == pytest.approx(found[0], abs=1e-5)


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_adapters_are_merged_under_the_trained_head(method, tiny_model, pairs, tmp_path):
    if method == "qlora":
        pytest.importorskip("bitsandbytes")
    output = tmp_path / "model"
    metrics = reward_model.run(job(tiny_model, pairs, output, method=method, lora={"rank": 4}), Progress())
    answers = [Row(f"r{i}", [*asked(i), *json.loads(said(f"def add_{i}(a, b):"))]) for i in range(3)]
    grader = RewardModel.load(output, to_grade=False)
    assert None not in grader.scores(answers).values
    adapter = json.loads((output / "adapter/adapter_config.json").read_text())
    assert adapter["task_type"] == "SEQ_CLS" and adapter["modules_to_save"] == ["score"]
    assert metrics["trained_parameters"] > 32, "the head of 32 weights is trained besides the adapters"


def test_the_adapter_directory_is_the_same_model_in_peft(tiny_model, pairs, tmp_path):
    peft = pytest.importorskip("peft")
    output = tmp_path / "model"
    reward_model.run(job(tiny_model, pairs, output, method="lora", lora={"rank": 4}), Progress())
    merged = AutoModelForSequenceClassification.from_pretrained(output, dtype=torch.float32)
    base = AutoModelForSequenceClassification.from_pretrained(tiny_model, dtype=torch.float32, num_labels=1)
    adapted = peft.PeftModel.from_pretrained(base, output / "adapter").eval()
    ids = torch.arange(5, 45)[None]
    with torch.no_grad():
        assert float(adapted(ids).logits) == pytest.approx(float(merged(ids).logits), abs=0.02)


def test_a_stopped_run_ends_with_the_same_weights(trained, tiny_model, pairs, tmp_path):
    class StoppedAfter(Progress):
        def report(self, phase, done, total, unit, **numbers):
            self.stop_requested = done >= 3

    output = tmp_path / "model"
    with pytest.raises(Stopped):
        reward_model.run(job(tiny_model, pairs, output), StoppedAfter())
    metrics = reward_model.run(job(tiny_model, pairs, output), Progress())
    assert metrics["resumed_from"] == 3
    assert (output / "model.safetensors").read_bytes() == (trained[0] / "model.safetensors").read_bytes()
    assert (output / "reward.json").read_bytes() == (trained[0] / "reward.json").read_bytes()


def test_a_model_that_misses_its_gate_is_saved_and_may_not_grade(tiny_model, pairs, tmp_path):
    output, progress, heard = tmp_path / "model", Progress(), []
    progress.event = lambda kind, **said: heard.append((kind, said.get("message", "")))
    metrics = reward_model.run(job(tiny_model, pairs, output, steps=1, gate={"accuracy": 0.99}), progress)
    assert any(kind == "warning" and "it may not grade: held-out accuracy is" in message for kind, message in heard)
    assert metrics["may_grade"] is False and "held-out accuracy is" in metrics["may_not_grade_because"]
    with pytest.raises(ModelError, match=r"may not grade: held-out accuracy is .* the gate asks at least 0.99"):
        RewardModel.load(output)


def test_without_test_rows_it_may_not_grade(tiny_model, tmp_path):
    write_preferences(tmp_path / "pairs", rows(0, 8))
    metrics = reward_model.run(job(tiny_model, tmp_path / "pairs", tmp_path / "model", steps=1), Progress())
    assert metrics["held_out_pairs"] == 0 and not metrics["may_grade"]


def test_nothing_to_learn_and_context_parallelism_are_refused(tiny_model, pairs, tmp_path):
    same = said("def f(a):\n    return a\n")
    write_preferences(tmp_path / "pairs", [pair(i, chosen=same, rejected=same) for i in range(3)])
    with pytest.raises(ModelError, match="no pair of the dataset can be learnt \\(3 equal_answers\\)"):
        reward_model.run(job(tiny_model, tmp_path / "pairs", tmp_path / "model"), Progress())
    with pytest.raises(ModelError, match="mesh cp 2 would part the answers"):
        reward_model.run(job(tiny_model, pairs, tmp_path / "model", mesh={"cp": 2}), Progress())
