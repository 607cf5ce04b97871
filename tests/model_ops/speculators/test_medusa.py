"""MEDUSA: what training trains is what drafting computes, exactness in the decoder, files and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from exactness import greedy_text_is_the_targets, sampled_text_is_distributed_as_the_target, six_token_target
from safetensors.torch import load_file, save_file
from tiny_drafters import DRAFT_VOCABULARY, FORMS, drafter_of
from tiny_models import tiny_model

from model_ops.decoding.decode_loop import decode
from model_ops.decoding.incremental import FINAL, IncrementalModel
from model_ops.jobs.errors import ModelError
from model_ops.speculators.draft_model import DocumentWindows
from model_ops.speculators.factory import load_draft_model, new_draft_model
from model_ops.speculators.registry import speculator_settings
from model_ops.training.optimizers import parameter_groups

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("medusa")]


def by_definition(model, state):
    """Logits of each head from the formulas of the paper, weights by the names of the files."""
    weights, logits = model.state_dict(), []
    for head in range(model.config.num_heads):
        x = state
        for layer in range(model.config.num_hidden_layers):
            x = x + F.silu(weights[f"blocks.{head}.layers.{layer}.weight"] @ x)
        own = "lm_head.weight" if model.config.shared_head else f"lm_heads.{head}.weight"
        logits.append(weights[own] @ x)
    return torch.stack(logits)


@pytest.mark.parametrize("form", FORMS)
def test_training_and_drafting_compute_the_papers_formula(form):
    target = tiny_model(layers=2)
    runner = IncrementalModel(target)
    model = drafter_of(form, runner)
    text = torch.randint(0, 96, (2, 14), generator=torch.Generator().manual_seed(1))
    final, captured = runner.forward(text, runner.new_cache(2), (FINAL,))
    assert torch.equal(final, captured)
    starts, window = torch.tensor([4, 2]), 6
    index = starts[:, None] + torch.arange(window)
    states = final.gather(1, index[:, :, None].expand(-1, -1, 32))
    outputs = model.unroll(DocumentWindows(text, captured[:, :, :0], starts, window, states), 3)
    for row, start in enumerate(starts.tolist()):
        for a in range(window):
            j = start + a
            expected = by_definition(model, final[row, j])
            for step in range(3):
                rows, weight = model.scored(outputs[step][row, a, None], step)
                torch.testing.assert_close((rows @ weight.t())[0], expected[step], atol=1e-4, rtol=1e-4)
    # the decoder: a prompt up to j, the token drawn from it, and then a round that accepted two drafts
    drafter = model.drafter()
    begun = [text[0, :5].tolist(), text[1, :5].tolist()]
    drafter.begin(begun, text[:, 5], captured[:, :5])
    for end in (5, 8):
        proposal = drafter.propose(3, 0.0, torch.zeros(2, 3))
        for row in range(2):
            expected = by_definition(model, final[row, end - 1])
            assert model.target_ids[expected.argmax(-1)].tolist() == proposal.tokens[row].tolist()
        if end == 5:
            drafter.advance(text[:, 6:10], torch.tensor([3, 3]), captured[:, 5:9])


@pytest.mark.parametrize("form", FORMS)
def test_greedy_text_is_the_targets_own(form):
    target = tiny_model(layers=2, seed=3)
    answers = greedy_text_is_the_targets(target, drafter_of(form, IncrementalModel(target)).drafter())
    assert sum(answer.drafted for answer in answers) == 3 * sum(answer.forwards for answer in answers) > 0


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_sampled_text_is_distributed_as_the_target(form, greedy):
    target = six_token_target()
    drafter = drafter_of(form, IncrementalModel(target), drafts=2, part=0.7).drafter(greedy)
    answers = sampled_text_is_distributed_as_the_target(target, drafter)
    assert 0 < sum(answer.accepted for answer in answers) < sum(answer.drafted for answer in answers)


@pytest.mark.parametrize("form", FORMS)
def test_files_give_back_the_same_logits(form, tmp_path):
    runner = IncrementalModel(tiny_model(layers=2))
    model = drafter_of(form, runner).to(torch.bfloat16)
    model.save(tmp_path, 3)
    again = load_draft_model(tmp_path, torch.bfloat16)
    assert type(again) is type(model) and again.config == model.config and torch.equal(again.target_ids, model.target_ids)
    state = torch.randn(5, 32, generator=torch.Generator().manual_seed(2)).bfloat16()
    assert all(torch.equal(model.logits(state, head), again.logits(state, head)) for head in range(3))
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_the_files_are_what_servers_ask_for(tmp_path):
    """Names, shapes and fields as vLLM 0.32's medusa.py reads them."""
    runner = IncrementalModel(tiny_model(layers=2))
    drafter_of(DRAFT_VOCABULARY, runner).save(tmp_path / "medusa", 3)
    stored = {
        name: (list(tensor.shape), tensor.dtype)
        for name, tensor in load_file(tmp_path / "medusa" / "model.safetensors").items()
    }
    blocks = {f"blocks.{head}.layers.{layer}.weight": ([32, 32], torch.bfloat16) for head in range(3) for layer in range(2)}
    assert stored == {**blocks, "lm_head.weight": ([67, 32], torch.bfloat16), "token_map": ([67], torch.int64)}
    config = json.loads((tmp_path / "medusa" / "config.json").read_text())
    assert config["truncated_vocab_size"] == 67 and config["vocab_size"] == 96 and config["original_lm_head"] is True
    assert [name for name in config if "num" in name] == ["num_heads", "num_hidden_layers"]
    drafter_of("medusa with heads of their own", runner).save(tmp_path / "own", 3)
    names = load_file(tmp_path / "own" / "model.safetensors").keys()
    assert {f"lm_heads.{head}.weight" for head in range(3)} <= names and "token_map" not in names


def test_an_untrained_medusa_is_the_targets_own_head():
    runner = IncrementalModel(tiny_model(layers=2))
    model = new_draft_model(speculator_settings(architecture="medusa").resolved(), runner, torch.arange(5, 60))
    state = torch.randn(4, 32)
    for head in range(3):
        torch.testing.assert_close(model.logits(state, head), runner.logits(state)[:, 5:60])
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad, name


@pytest.mark.parametrize("form", FORMS)
def test_muon_leaves_output_matrices_to_adamw(form):
    model = drafter_of(form, IncrementalModel(tiny_model(layers=2))).requires_grad_()
    settings = speculator_settings(optimizer="muon").resolved()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    matrices = {
        names[id(parameter)]
        for group in parameter_groups(model, settings)
        if group["matrices"]
        for parameter in group["params"]
    }
    assert matrices == {name for name in names.values() if name.startswith("blocks.")}


def test_longer_chains_than_trained_are_refused():
    runner = IncrementalModel(tiny_model(layers=2))
    for form in FORMS:
        model = drafter_of(form, runner)
        with pytest.raises(ModelError, match="was trained for 3 tokens"):
            decode(
                runner,
                [[3, 4]],
                ["r"],
                eos_ids={2},
                temperature=0,
                max_new_tokens=4,
                drafter=model.drafter(),
                num_speculative_tokens=4,
            )
        with pytest.raises(ValueError, match="3"):
            model.save(Path("nowhere"), 4)


def edited(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("form", "changes", "expected"),
    [
        ("medusa", {"num_heads": None}, "num_heads"),
        ("medusa", {"num_heads": 4}, "blocks.3.layers.0.weight is missing"),
        (DRAFT_VOCABULARY, {"truncated_vocab_size": 60}, "token_map is"),
        ("medusa", {"model_type": "llama"}, "not a supported drafter"),
    ],
)
def test_directories_that_do_not_fit_are_refused(form, changes, expected, tmp_path):
    drafter_of(form, IncrementalModel(tiny_model(layers=2))).save(tmp_path, 3)
    edited(tmp_path, **changes)
    with pytest.raises(ModelError, match=expected):
        load_draft_model(tmp_path)


def test_prefixed_and_older_names_are_read(tmp_path):
    runner = IncrementalModel(tiny_model(layers=2))
    model = drafter_of(DRAFT_VOCABULARY, runner)
    model.save(tmp_path, 3, torch.float32)
    tensors = load_file(tmp_path / "model.safetensors")
    order = torch.randperm(67)
    tensors["token_map"], tensors["lm_heads.0.weight"] = tensors["token_map"][order], tensors.pop("lm_head.weight")[order]
    save_file({"medusa_heads." + name: tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    again = load_draft_model(tmp_path)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"architecture": "eagle3", "residual_layers": 1}, "only medusa has it"),
        ({"architecture": "medusa", "block_size": 8}, "only dflash has it"),
        ({"architecture": "medusa", "ttt_steps": 2}, "leave ttt_steps out"),
        ({"architecture": "medusa", "draft_vocab_size": 64}, "whole vocabulary only"),
        ({"architecture": "eagle3", "cod_ratio": 0.5}, "only p_eagle has it"),
        ({"architecture": "medusa", "num_layers": 2}, "eagle3, eagle3.1, p_eagle, dflash have it"),
        ({"architecture": "p_eagle", "ttt_steps": 2}, "leave ttt_steps out"),
        ({"architecture": "hydra"}, "eagle3.1"),
    ],
)
def test_settings_that_contradict_the_architecture_are_refused(fields, expected):
    with pytest.raises(ValueError, match=expected):
        speculator_settings(**fields)


def test_open_fields_follow_the_architecture():
    medusa = speculator_settings(architecture="medusa", num_speculative_tokens=4, preset="quick").resolved()
    assert (medusa.ttt_steps, medusa.residual_layers, medusa.shared_head, medusa.eta) == (4, 1, True, 10)
    eagle3 = speculator_settings(architecture="eagle3", preset="quick").resolved()
    assert (eagle3.ttt_steps, eagle3.num_layers, eagle3.eta) == (3, 1, 3)
    parallel = speculator_settings(architecture="p_eagle", num_speculative_tokens=6, draft_vocab_size=500).resolved()
    assert (parallel.ttt_steps, parallel.num_layers, parallel.mask_token_id) == (6, 4, None)
    assert parallel.shares_of_steps(6) == pytest.approx([1, 0.7, 0.49, 0.343, 0.2401, 0.2])
    assert eagle3.shares_of_steps(3) == [1, 1, 1]
    assert medusa == medusa.resolved()
