"""A small language model as the drafter: trained to be accepted, written as servers load it, refused where it cannot draft."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from tiny_drafters import drafter_job
from tiny_models import run_job, tiny_model, write_dataset, write_target

from model_ops.evaluation import report as evaluate
from model_ops.jobs import ModelError, Progress
from model_ops.models.model_directory import load_model
from model_ops.operations import generate, quantize
from model_ops.speculators import load_draft_model
from model_ops.speculators import operation as speculator
from model_ops.speculators.draft_model import DocumentWindows
from model_ops.speculators.registry import speculator_settings
from model_ops.speculators.standalone.network import StandaloneModel
from model_ops.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("standalone model")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("standalone")
    write_target(root / "target", layers=6)
    write_target(root / "small", layers=2, seed=5, hidden_size=24, num_attention_heads=3, num_key_value_heads=1)
    write_dataset(root / "dataset", rows=16)
    run_job(generate, root / "answers", {"target": root / "target", "dataset": root / "dataset"}, max_new_tokens=16)
    return root


def job(place, output, inputs=None, **changes):
    settings = {"architecture": "draft_model", "steps": 12, **changes}
    return drafter_job(place, output, {"draft_model": place / "small", **(inputs or {})}, **settings)


def run(place, output, inputs=None, **changes):
    return speculator.run(job(place, output, inputs, **changes), Progress())


@pytest.mark.parametrize("tied", [True, False])
def test_each_draft_step_is_scored_by_the_small_models_own_logits(tmp_path, tied):
    small = tiny_model(layers=2, tied=tied)
    model = StandaloneModel(small, tmp_path)
    text = torch.randint(0, 96, (2, 14), generator=torch.Generator().manual_seed(1))
    ids = torch.cat((text, torch.zeros(2, 3, dtype=torch.int64)), dim=1)  # padding on the right
    starts, window = torch.tensor([4, 2]), 6
    outputs = model.unroll(DocumentWindows(ids, torch.empty(2, 17, 0), starts, window), 3)
    logits = small(text).logits
    for row, start in enumerate(starts.tolist()):
        for a in range(window):
            for step in range(3):  # index j = start + a knows x[0..j+1] and its drafts, and predicts x[j+2+step]
                rows, weight = model.scored(outputs[step][row, a, None], step)
                torch.testing.assert_close((rows @ weight.t())[0], logits[row, start + a + 1 + step], atol=1e-4, rtol=1e-4)


def test_it_learns_and_is_written_as_a_model_that_servers_load(place, tmp_path):
    metrics = run(place, tmp_path / "drafter", steps=60)
    lines = [json.loads(line) for line in (tmp_path / "drafter/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"] and lines[-1]["alpha_0"] > lines[0]["alpha_0"] + 0.02
    assert "alpha_1" not in lines[0] and metrics["validation_alpha_1"] > 0 and metrics["draft_coverage"] == 1
    assert verify(tmp_path / "drafter", place / "target") == [] == verify(tmp_path / "drafter")
    model = load_draft_model(tmp_path / "drafter")
    assert model.kind == "draft_model" and model.longest_chain is None
    plain = load_model(tmp_path / "drafter")  # what servers read
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, model.language_model.state_dict()[name]), name
    before = load_model(place / "small").state_dict()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in plain.state_dict().items())
    numbers = run_job(
        evaluate,
        tmp_path / "report",
        {
            "target": place / "target",
            "dataset": place / "dataset",
            "speculator": tmp_path / "drafter",
            "draft_model": place / "small",
        },
        rows=2,
        max_new_tokens=12,
        num_speculative_tokens=2,
    )
    assert numbers["greedy_identical_draft_model_t0"] == numbers["greedy_identical_draft_model_untrained_t0"] == 1.0
    assert numbers["tau_draft_model_t1"] > numbers["tau_draft_model_untrained_t1"]


def test_going_on_from_a_previous_one(place, tmp_path):
    run(place, tmp_path / "first")
    # one step that changes nothing: what is written is what was taken over
    run(
        place,
        tmp_path / "second",
        {"previous": tmp_path / "first"},
        steps=1,
        learning_rate=1e-12,
        continue_from="last",
        previous_share=1,
    )
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    write_target(tmp_path / "other", layers=6, seed=3)
    run_job(generate, tmp_path / "answers", {"target": tmp_path / "other", "dataset": place / "dataset"}, max_new_tokens=4)
    with pytest.raises(ModelError, match="another revision of the target"):
        run(
            place,
            tmp_path / "third",
            {"previous": tmp_path / "first", "target": tmp_path / "other", "dataset": tmp_path / "answers"},
            continue_from="last",
        )


def _other_tokenizer(place, folder):
    write_target(folder, layers=2, vocab_size=290)


def _other_vocabulary_size(place, folder):
    shutil.copytree(place / "small", folder)
    model = load_model(folder)
    model.resize_token_embeddings(304)
    model.save_pretrained(folder)


def _of_the_same_size(place, folder):
    write_target(folder, layers=6, seed=9)


def _quantized(place, folder):
    run_job(quantize, folder, {"model": place / "small"})


def _with_a_soft_cap(place, folder):
    shutil.copytree(place / "small", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "final_logit_softcapping": 30.0}))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda place, folder: shutil.copytree(place / "target", folder), "the target's own weights"),
        (_other_tokenizer, "another tokenizer than the target"),
        (_other_vocabulary_size, "has vocab_size 304 and the target 300"),
        (_of_the_same_size, "would cost as much as answering"),
        (_quantized, "is quantized"),
        (_with_a_soft_cap, "caps its logits"),
        (lambda place, folder: None, "config.json"),
    ],
)
def test_what_cannot_draft_is_refused_before_anything_is_computed(place, tmp_path, build, said, monkeypatch):
    build(place, tmp_path / "small")
    monkeypatch.setattr(speculator, "load_runner", None)
    with pytest.raises(ModelError, match=said):
        run(place, tmp_path / "drafter", {"draft_model": tmp_path / "small"})
    assert not (tmp_path / "drafter").exists()


def test_the_recipes_student_has_to_be_given(place, tmp_path):
    asked = job(place, tmp_path / "drafter")
    del asked.inputs["draft_model"]
    with pytest.raises(ModelError, match="give the job the input draft_model"):
        speculator.run(asked, Progress())


def test_a_drafter_is_told_from_a_model_and_from_another_targets(place, tmp_path):
    with pytest.raises(ModelError, match="not a supported drafter"):
        load_draft_model(place / "small")
    run(place, tmp_path / "drafter", steps=1)
    write_target(tmp_path / "other", layers=6, seed=3)
    assert "another revision" in verify(tmp_path / "drafter", tmp_path / "other")[0].sentence
    config = json.loads((place / "target/config.json").read_text())
    shutil.copytree(place / "target", tmp_path / "wider")
    (tmp_path / "wider/config.json").write_text(json.dumps({**config, "vocab_size": 304}))
    assert any("servers refuse the two" in problem.sentence for problem in verify(tmp_path / "drafter", tmp_path / "wider"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"architecture": "eagle3", "draft_model": "student"}, "only draft_model has it"),
        ({"architecture": "draft_model", "ttt_steps": 3}, "Leave ttt_steps out"),
        ({"architecture": "draft_model", "draft_vocab_size": 100}, "whole vocabulary only"),
        ({"architecture": "draft_model", "mesh": {"processes": 2}}, "trained in one process"),
    ],
)
def test_settings_that_it_does_not_have_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        speculator_settings(**given)


def test_open_settings_are_those_of_a_whole_model():
    filled = speculator_settings(architecture="draft_model", num_speculative_tokens=5).resolved()
    assert (filled.draft_model, filled.ttt_steps, filled.eta) == ("student", 1, 3.0)
    assert filled.learning_rate == pytest.approx(speculator_settings(optimizer="adamw").resolved().learning_rate / 10)
    assert speculator_settings(architecture="draft_model", learning_rate=3e-4).resolved().learning_rate == 3e-4
