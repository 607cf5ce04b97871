"""Hidden states as other trainers read them, and their heads as ours decodes with them; no peer is needed."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import tiny_model, write_target

from benchmarks.drafter_peer_formats import (
    NormedEagle3,
    read_specforge_head,
    read_speculators_head,
    write_for_specforge,
    write_for_speculators,
    write_rows,
)
from benchmarks.drafter_peers import index_target, mean_and_range, next_rate, rows_for, specforge_draft
from benchmarks.our_drafter import GivenSteps, begin_as
from model_ops.decoding import FINAL, load_runner
from model_ops.jobs import Progress
from model_ops.models.model_directory import read_config
from model_ops.speculators.decoder_config import Eagle3Config
from model_ops.speculators.eagle3.network import Eagle3, midlayer_config
from model_ops.speculators.operation import new_drafter
from model_ops.speculators.registry import speculator_settings
from model_ops.speculators.states.hidden_states import AnswerRow, HiddenStates

ROWS = [AnswerRow("a", list(range(5, 30)), 7), AnswerRow("b", list(range(40, 52)), 3)]
LAYERS = (2, 4, 5)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("peer-formats")
    write_target(root / "target")
    runner = load_runner(root / "target")
    states = HiddenStates(root / "cache", ROWS, (*LAYERS, 8, FINAL), "t")
    states.compute(runner, Progress())
    write_for_speculators(ROWS, states, root / "speculators")
    write_for_specforge(ROWS, states, root / "specforge")
    boundaries = HiddenStates(root / "cache", ROWS, LAYERS, "t")
    boundaries.compute(runner, Progress())
    return root, runner, boundaries


def test_speculators_reads_the_states_that_our_drafter_reads_and_norms_the_last_one_itself(written):
    root, runner, boundaries = written
    for place, row in enumerate(ROWS):
        found = load_file(root / "speculators" / "hidden_states" / f"hs_{place}.safetensors")
        captured, last = boundaries.row(place)
        assert found["token_ids"].tolist() == row.ids
        assert torch.equal(found["hidden_states"][:, :-1].flatten(1), captured)
        normed = runner.norm(found["hidden_states"][:, -1].float(), runner.final_norm.float())[
            row.start : row.start + row.window + 1
        ]
        torch.testing.assert_close(normed.float(), last.float(), atol=0.03, rtol=0.02)


def test_specforge_reads_the_same_states_the_last_one_normed_and_the_answers_mask(written):
    root, _, boundaries = written
    for place, row in enumerate(ROWS):
        found = torch.load(root / "specforge" / f"{place:08d}.ckpt", weights_only=True)
        captured, last = boundaries.row(place)
        assert found["input_ids"].tolist() == row.ids
        assert found["loss_mask"].tolist() == [0] * row.prompt_tokens + [1] * (len(row.ids) - row.prompt_tokens)
        assert torch.equal(found["aux_hidden_state"], captured[None])
        assert torch.equal(found["hidden_state"][0, row.start : row.start + row.window + 1], last)


def head(norm_before_fc=True, norm_before_residual=True):
    torch.manual_seed(1)
    config = Eagle3Config.for_target(tiny_model().config, 96, norm_output=True).model_copy(update={"layer_ids": LAYERS})
    model = NormedEagle3(config, norm_before_fc, norm_before_residual)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5)
    model.t2d.fill_(True)
    return model.eval().requires_grad_(False)


def as_speculators_writes(model, folder, **flags):
    """Its names, no map of a vocabulary that is whole, and every flag in the config."""
    folder.mkdir()
    weights = {
        name.replace("midlayer.", "layers.0.", 1): tensor
        for name, tensor in model.state_dict().items()
        if name not in ("d2t", "t2d")
    }
    save_file(weights, folder / "model.safetensors")
    raw = {
        "draft_vocab_size": 96,
        "fc_norm": False,
        "norm_output": True,
        "norm_before_fc": True,
        "norm_before_residual": True,
        "transformer_layer_config": {"num_hidden_layers": 1},
        "eagle_aux_hidden_state_layer_ids": list(LAYERS),
        **flags,
    }
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


def test_a_speculators_head_comes_back_with_its_weights_its_norms_and_the_whole_vocabulary(tmp_path):
    model = head()
    found = read_speculators_head(as_speculators_writes(model, tmp_path / "head"), tiny_model().config)
    assert found.target_ids.tolist() == list(range(96)) and found.capture == LAYERS and found.config.norm_output
    for name, tensor in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name
    captured, attended = torch.randn(3, 96), torch.randn(3, 32)
    residual = model.fuse(captured)
    assert torch.equal(found.midlayer.finish(found.fuse(captured), attended), model.midlayer.finish(residual, attended))


def test_the_two_further_norms_are_where_speculators_has_them():
    with_norms, without = head(), head(norm_before_fc=False, norm_before_residual=False)
    without.load_state_dict({name: tensor for name, tensor in with_norms.state_dict().items() if name != "input_norm.weight"})
    captured, attended = torch.randn(3, 96), torch.randn(3, 32)
    epsilon = with_norms.config.rms_norm_eps
    normed = captured * (captured.square().mean(-1, keepdim=True) + epsilon).rsqrt() * with_norms.input_norm.weight
    torch.testing.assert_close(with_norms.fuse(captured), without.fuse(normed))
    hidden = without.fuse(normed)
    residual = hidden * (hidden.square().mean(-1, keepdim=True) + epsilon).rsqrt() * without.midlayer.hidden_norm.weight
    torch.testing.assert_close(with_norms.midlayer.finish(hidden, attended), without.midlayer.finish(residual, attended))


def test_a_head_without_a_flag_is_not_guessed_at(tmp_path):
    folder = as_speculators_writes(head(), tmp_path / "head")
    raw = json.loads((folder / "config.json").read_text())
    del raw["norm_before_residual"]
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(KeyError, match="norm_before_residual"):
        read_speculators_head(folder, tiny_model().config)


def test_a_specforge_head_feeds_back_before_the_norm_whatever_its_config_calls_norm_output(tmp_path):
    model = head(norm_before_fc=False, norm_before_residual=False)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    raw = {**midlayer_config(model.config, torch.float32), "norm_output": True}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    found = read_specforge_head(tmp_path, tiny_model().config, LAYERS)
    hidden = torch.randn(2, 32)
    assert type(found) is Eagle3 and found.capture == LAYERS and torch.equal(found.fed_back(hidden), hidden)
    assert torch.equal(found.logits(hidden), model.logits(hidden))


def test_specforge_gets_a_target_with_an_index_and_output_layers(written, tmp_path):
    root, _, _ = written
    index_target(root / "target", tmp_path / "indexed")
    index = json.loads((tmp_path / "indexed" / "model.safetensors.index.json").read_text())
    assert index["weight_map"]["model.embed_tokens.weight"] == "model.safetensors"
    assert load_file(tmp_path / "indexed" / "model.safetensors").keys() == index["weight_map"].keys()
    draft = specforge_draft(read_config(root / "target"), (2, 5, 7), fc_norm=False)
    assert draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 4, 6]
    assert draft["draft_vocab_size"] == draft["vocab_size"] == 300


def test_ours_is_fed_the_peers_steps(written, tmp_path):
    _, _, boundaries = written
    settings = speculator_settings(steps=2, tokens_per_step=64).resolved()
    plan = GivenSteps(ROWS, boundaries, settings, [[1], [0, 1, 0]])
    assert [[name for batch in plan.step(step) for name in batch.row_ids] for step in (0, 1)] == [["b"], ["b", "a", "a"]]
    write_rows(ROWS, tmp_path / "rows.jsonl")
    assert [AnswerRow(**json.loads(line)) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == ROWS


def test_rows_are_drawn_until_they_hold_the_tokens():
    many = [AnswerRow(str(number), list(range(100)), 10) for number in range(50)]
    chosen = rows_for(many, 450)
    assert len(chosen) == 5 and chosen == rows_for(many, 450) and chosen != many[:5]
    assert len(rows_for(many, 10**9)) == 50


def test_a_rate_is_tried_beyond_the_best_one_as_long_as_that_is_at_an_end():
    assert next_rate({1e-3: 1.2, 3e-3: 1.4, 1e-2: 1.3}) == []
    assert next_rate({1e-3: 1.2, 3e-3: 1.3, 1e-2: 1.4}) == [pytest.approx(3e-2)]
    assert next_rate({1e-3: 1.5, 3e-3: 1.3, 1e-2: 1.4}) == [pytest.approx(1e-3 / 3)]


def test_ratios_of_repeats_are_told_with_their_range():
    assert mean_and_range([2.0, 1.0, 1.5]) == [1.5, 1.0, 2.0]


def test_begun_as_a_peer_begins_the_head_is_the_targets_and_frozen_or_random_and_trained(written):
    root, runner, _ = written
    for peer, frozen in (("speculators", True), ("specforge", False)):
        model, _ = new_drafter(
            root / "target", runner, ROWS, [], speculator_settings(architecture="eagle3", draft_vocab_size=96).resolved()
        )
        head = model.lm_head.weight.detach().clone()
        embedding = model.embed_tokens.weight.detach().clone()
        begin_as(peer, model)
        assert torch.equal(model.lm_head.weight, head) == frozen and model.lm_head.weight.requires_grad != frozen
        assert torch.equal(model.embed_tokens.weight, embedding)
        assert abs(float(model.fc.weight.std()) - 0.02) < 0.002 and torch.equal(
            model.norm.weight, torch.ones_like(model.norm.weight)
        )
