"""Operation speculator: it learns, it resumes bit for bit, and what it writes is what was trained."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from stop_after import StopAfter
from tiny_drafters import drafter_job
from tiny_models import run_job, write_dataset, write_target

from model_ops.decoding.target import load_runner
from model_ops.jobs import Progress, Stopped
from model_ops.operations import generate
from model_ops.speculators import load_draft_model
from model_ops.speculators import operation as speculator
from model_ops.speculators.losses.chain_loss import Teacher
from model_ops.speculators.losses.training_loss import measure_alpha
from model_ops.speculators.registry import speculator_settings
from model_ops.speculators.states.hidden_states import AnswerRow, HiddenStates, read_answers
from model_ops.speculators.states.speculator_batches import (
    SpeculatorPlan,
    choose_draft_vocabulary,
    make_batch,
    plan_steps,
    supervised,
)
from model_ops.verify import verify
from tests.thorough_cases import thorough_except

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("speculator")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("speculator")
    write_target(root / "target")
    write_dataset(root / "dataset", rows=16)
    run_job(generate, root / "answers", {"target": root / "target", "dataset": root / "dataset"}, max_new_tokens=16)
    return root


def job(place, output, **changes):
    return drafter_job(place, output, **{"steps": 12, "ttt_steps": 3, "checkpoint_every": 4, **changes})


def run(place, output, **changes):
    return speculator.run(job(place, output, **changes), Progress())


@pytest.mark.parametrize("loss", thorough_except(["lk_lambda"], ["kl", "lk_lambda", "lk_alpha"]))
def test_training_raises_acceptance(place, tmp_path, loss):
    metrics = run(place, tmp_path, steps=40, loss=loss)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 40 and lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["alpha_0"] > lines[0]["alpha_0"] + 0.02
    assert all(0 <= line[f"alpha_{step}"] <= 1 for line in lines for step in range(3))
    assert 1 < metrics["validation_expected_tau"] < 3 and 0.99 < metrics["draft_coverage"] <= 1
    assert not (tmp_path / ".work" / "states").exists()


@pytest.mark.parametrize("architecture", thorough_except(["eagle3.1"], ["eagle3.1", "dflash"]))
def test_every_architecture_learns_and_is_written_soundly(place, tmp_path, architecture):
    metrics = run(place, tmp_path, steps=40, architecture=architecture, ttt_steps=2)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"] and lines[-1]["alpha_0"] > lines[0]["alpha_0"] + 0.02
    assert verify(tmp_path, place / "target") == []
    model = load_draft_model(tmp_path)
    assert model.kind == architecture and len(model.target_ids) == metrics["draft_vocab_size"]
    rows, _ = read_answers(place / "answers" / "validation.parquet", 256)
    states = HiddenStates(tmp_path / "states", rows, model.capture, "t")
    runner = load_runner(place / "target")
    states.compute(runner, Progress())
    again = measure_alpha(model.attach(runner), Teacher(runner.head.weight, model.target_ids), rows, states, 2)
    for name, value in again.items():
        assert abs(value - metrics[name]) < 0.01, name  # the file rounds its weights to bfloat16


@pytest.mark.parametrize(
    "own", thorough_except([{"architecture": "eagle3"}], [{"architecture": "eagle3"}, {"architecture": "dflash", "anchors": 3}])
)
def test_a_stopped_run_ends_with_the_same_weights(place, tmp_path, own):
    own = {"ttt_steps": 2, "num_layers": 1, **own}
    run(place, tmp_path / "whole", **own)

    with pytest.raises(Stopped):
        speculator.run(job(place, tmp_path / "cut", **own), StopAfter(6, "speculator"))
    assert not (tmp_path / "cut" / "model.safetensors").exists()
    run(place, tmp_path / "cut", **own)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_reloading_gives_the_same_logits_in_both_layouts(place, tmp_path):
    run(place, tmp_path, steps=2)
    model = load_draft_model(tmp_path, torch.bfloat16)
    hidden = torch.randn(3, model.config.hidden_size).bfloat16()
    stored = load_file(tmp_path / "model.safetensors")
    again = load_draft_model(tmp_path, torch.bfloat16)
    assert torch.equal(model.logits(hidden), again.logits(hidden))
    assert all(torch.equal(tensor, stored[name]) for name, tensor in model.state_dict().items())
    twin = load_file(tmp_path / "speculators" / "model.safetensors")
    assert twin.keys() == {name.replace("midlayer.", "layers.0.") for name in stored}
    assert all(torch.equal(stored[name], twin[name.replace("midlayer.", "layers.0.")]) for name in stored)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["max_position_embeddings"] == 256
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    other = json.loads((tmp_path / "speculators" / "config.json").read_text())
    assert other["norm_before_residual"] is False
    assert other["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 2
    embedding = load_file(place / "target" / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(stored["embed_tokens.weight"], embedding)


def test_the_teacher_is_the_targets_distribution_at_the_supervised_token(place):
    """Walk every supervised index of every step by hand, against the target run over the whole answer."""
    rows, _ = read_answers(place / "answers" / "train.parquet", 256)
    runner = load_runner(place / "target")
    states = HiddenStates(place / "walk", rows, (2, 4, 5), "t")
    states.compute(runner, Progress())
    members = [0, 5, 9]
    batch = make_batch(rows, states, members)
    windows = batch.windows
    longest = int(windows.max())
    for step in range(3):
        entries, teacher_rows = supervised(windows, step)
        found = {}
        for entry, teacher in zip(entries.tolist(), teacher_rows.tolist(), strict=True):
            document, a = divmod(entry, longest)
            row = rows[members[document]]
            j = row.start + a
            assert j + 2 + step < len(row.ids) and j + 2 + step >= row.prompt_tokens
            found.setdefault(document, {})[j] = batch.last[teacher]
        for document, states_of_it in found.items():
            row = rows[members[document]]
            hidden, _ = runner.forward(torch.tensor([row.ids]), runner.new_cache(1))
            assert len(states_of_it) == row.window - step
            for j, last in states_of_it.items():
                torch.testing.assert_close(last.float(), hidden[0, j + 1 + step], atol=0.05, rtol=0.02)


def test_hidden_states_are_computed_once(place, tmp_path, monkeypatch):
    monkeypatch.setattr("model_ops.speculators.states.hidden_states.SHARD_TOKENS", 200)
    rows, _ = read_answers(place / "answers" / "train.parquet", 256)
    runner = load_runner(place / "target")
    states = HiddenStates(tmp_path, rows, (2, 4, 5), "t")
    states.compute(runner, Progress())
    assert len(list(states.folder.glob("*.safetensors"))) > 1
    captured, last = states.row(7)
    assert captured.shape == (len(rows[7].ids), 96) and last.shape == (rows[7].window + 1, 32)
    monkeypatch.setattr(runner, "forward", None)
    again = HiddenStates(tmp_path, rows, (2, 4, 5), "t")
    again.compute(runner, Progress())
    assert torch.equal(again.row(7)[0], captured) and torch.equal(again.row(7)[1], last)


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=60),
    steps=st.integers(1, 30),
    budget=st.integers(64, 500),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_plans_keep_their_promises(lengths, steps, budget, seed):
    values = speculator_settings(
        steps=steps, tokens_per_step=budget, seed=seed, learning_rate=1e-3, max_length=512, ttt_steps=2
    )
    plan = plan_steps(lengths, values)
    assert len(plan) == steps and plan == plan_steps(lengths, values)
    assert all(sum(lengths[row] for row in step) >= budget for step in plan[:-1])
    flat = [row for step in plan for row in step]
    for start in range(0, len(flat) - len(lengths) + 1, len(lengths)):
        assert sorted(flat[start : start + len(lengths)]) == list(range(len(lengths)))
    one_epoch = plan_steps(lengths, values.model_copy(update={"steps": None, "epochs": 1.0}))
    assert sorted(row for step in one_epoch for row in step) == list(range(len(lengths)))


class NoStates:
    """Stands for hidden states where only the rows matter."""

    def __init__(self, rows):
        self.rows = rows

    def of(self, members):
        return [(torch.zeros(len(self.rows[row].ids), 3), torch.zeros(self.rows[row].window + 1, 1)) for row in members]


@given(
    lengths=st.lists(st.integers(4, 200), min_size=1, max_size=30),
    steps=st.integers(1, 6),
    budget=st.integers(64, 500),
    ranks=st.integers(1, 5),
)
@settings(max_examples=40, deadline=None)
def test_processes_share_the_rows_of_a_step(lengths, steps, budget, ranks):
    values = speculator_settings(steps=steps, tokens_per_step=budget, micro_batch_tokens=160).resolved()
    rows = [AnswerRow(str(number), list(range(length)), 2) for number, length in enumerate(lengths)]
    plan = SpeculatorPlan(rows, NoStates(rows), values)
    for index, members in enumerate(plan.steps):
        shares = [plan.step(index, rank, ranks) for rank in range(ranks)]
        assert len({len(share) for share in shares}) == 1, "or some would wait for others"
        batches = [batch for share in shares for batch in share]
        assert sorted(row for batch in batches for row in batch.row_ids) == sorted(rows[row].row_id for row in members)
        assert all(bool(batch.weights.any()) == bool(batch.row_ids) for batch in batches)
        held = [sum(lengths[int(row)] for batch in share for row in batch.row_ids) for share in shares]
        assert max(held) - min(held) <= max(lengths)


@given(counts=st.lists(st.integers(0, 50), min_size=20, max_size=60), coverage=st.floats(0.1, 1.0))
@settings(max_examples=60, deadline=None)
def test_draft_vocabulary_covers_and_holds_what_it_must(counts, coverage):
    tensor = torch.tensor(counts)
    ids, share = choose_draft_vocabulary(tensor, {0, 7}, coverage=coverage)
    assert (ids.diff() > 0).all() and {0, 7} <= set(ids.tolist()) and 0 <= share <= 1
    if tensor.sum() > 0:
        assert share >= coverage - 1e-6
    sized, _ = choose_draft_vocabulary(tensor, {0, 7}, size=11)
    assert len(sized) == 11 and {0, 7} <= set(sized.tolist())
    kept = tensor[sized].sort(descending=True).values[:9]
    assert kept.sum() >= tensor.sort(descending=True).values[:9].sum() - tensor[[0, 7]].sum()


def test_rows_that_teach_nothing_are_left_out(place, tmp_path):
    table = pq.read_table(place / "answers" / "train.parquet")
    pq.write_table(table, tmp_path / "train.parquet")
    rows, counts = read_answers(tmp_path / "train.parquet", 20)
    assert counts["rows_left_out"] + len(rows) == table.num_rows
    assert all(len(row.ids) <= 20 and row.window > 0 for row in rows)
