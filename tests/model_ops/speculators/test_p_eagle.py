"""P-EAGLE: mask entries against a plain decoder, sampled depths, drafting against training, exactness, and its file."""

from __future__ import annotations

import json

import pytest
import torch
from exactness import greedy_text_is_the_targets, sampled_text_is_distributed_as_the_target, six_token_target
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_body import plain_body
from tiny_drafters import tiny_p_eagle
from tiny_models import tiny_model

from model_ops.decoding.incremental import IncrementalModel
from model_ops.jobs.errors import ModelError
from model_ops.speculators.backbone import draft_attention
from model_ops.speculators.draft_model import DocumentWindows
from model_ops.speculators.factory import load_draft_model
from model_ops.speculators.p_eagle.masked_drafts import sampled_entries
from model_ops.speculators.p_eagle.network import PEagle
from model_ops.speculators.states.draft_vocabulary import unused_token
from model_ops.speculators.states.hidden_states import AnswerRow

MASK = 95


def plain_drafts(model, ids, captured, j, steps):
    """The body over one sequence: entries of the text up to j, then steps - 1 mask entries. Outputs of the last `steps`."""
    table = model.embed_tokens.weight.clone()
    table[MASK] = model.mask_embedding
    tokens = torch.cat((ids[1 : j + 2], torch.full((steps - 1,), MASK)))
    states = torch.cat((captured[: j + 1], model.mask_hidden.expand(steps - 1, -1)))
    return plain_body(model, table[tokens], states @ model.fc.weight.T, torch.arange(j + steps))[j:]


@pytest.mark.parametrize(
    ("num_layers", "kv_heads", "lengths", "starts"),
    [(1, 2, [15, 11], [6, 2]), (3, 1, [15, 11, 5], [6, 0, 2]), (2, 4, [530, 30], [524, 20])],
)
def test_mask_entries_equal_a_plain_decoder_over_the_expanded_sequence(num_layers, kv_heads, lengths, starts):
    """Rows of several lengths (one for the CPU's own kernel), a text that holds the mask's id, all depths at all indices."""
    model, steps = tiny_p_eagle(tiny_model(layers=8, num_key_value_heads=kv_heads), num_layers=num_layers), 4
    windows = [length - 2 - start for length, start in zip(lengths, starts, strict=True)]
    ids, captured = torch.randint(0, 96, (len(lengths), max(lengths))), torch.randn(len(lengths), max(lengths), 96)
    ids[0, starts[0]] = MASK
    documents = DocumentWindows(ids, captured, torch.tensor(starts), max(windows), windows=torch.tensor(windows))
    with torch.no_grad():
        outputs = model.unroll(documents, steps)
        for d, (start, window) in enumerate(zip(starts, windows, strict=True)):
            for entry in range(window):
                expected = plain_drafts(model, ids[d], captured[d], start + entry, steps)
                found = torch.stack([output[d, entry] for output in outputs])
                torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("scores_at_once", [1 << 24, 200])
@pytest.mark.parametrize("longest", [13, 540])
def test_a_sample_of_the_entries_has_the_outputs_and_gradients_of_a_plain_decoder(longest, scores_at_once, monkeypatch):
    """Outputs at what was kept, zeros elsewhere; gradients of every parameter against autograd through the definition."""
    monkeypatch.setattr(draft_attention, "SCORES_AT_ONCE", {"cpu": scores_at_once})
    model, steps = tiny_p_eagle(tiny_model(layers=8), num_layers=2), 4
    lengths, windows = torch.tensor([longest, 9]), torch.tensor([6, 5])
    start = lengths - 2 - windows
    ids, captured = torch.randint(0, 96, (2, longest)), torch.randn(2, longest, 96)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(3))
    kept = sampled_entries(windows, [1.0, 0.7, 0.5, 0.4], order)
    in_padded = torch.cat((torch.arange(6), 6 + torch.arange(5)))
    documents = DocumentWindows(ids, captured, start, 6, windows=windows, kept=[in_padded[entries] for entries in kept])
    outputs = model.unroll(documents, steps)
    weights = torch.randn(steps, 12, 32)
    loss = sum((output.flatten(0, 1) * weight).sum() for output, weight in zip(outputs, weights, strict=True))
    trained = [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in ("norm.weight", "lm_head.weight")
    ]
    found = torch.autograd.grad(loss, [parameter for _, parameter in trained])
    expected = torch.zeros(())
    for step, entries in enumerate(kept):
        flat = outputs[step].flatten(0, 1)
        assert flat.count_nonzero() == flat[in_padded[entries]].count_nonzero() > 0
        for entry in in_padded[entries].tolist():
            d, a = divmod(entry, 6)
            out = plain_drafts(model, ids[d], captured[d], int(start[d]) + a, step + 1)[-1]
            torch.testing.assert_close(flat[entry], out, atol=1e-4, rtol=1e-3)
            expected = expected + (out * weights[step, entry]).sum()
    for (name, _), ours, theirs in zip(trained, found, torch.autograd.grad(expected, [p for _, p in trained]), strict=True):
        torch.testing.assert_close(
            ours, theirs, atol=2e-4 * float(theirs.abs().max()), rtol=2e-3, msg=lambda m, n=name: f"{n}: {m}"
        )


@given(windows=st.lists(st.integers(1, 40), min_size=1, max_size=6), ratio=st.floats(0.05, 1), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_sample_is_nested_and_of_its_share(windows, ratio, seed):
    shares = [ratio**step for step in range(5)]
    windows, entries = torch.tensor(windows), sum(windows)
    kept = sampled_entries(windows, shares, torch.randperm(entries, generator=torch.Generator().manual_seed(seed)))
    left = torch.cat([torch.arange(window, 0, -1) for window in windows.tolist()])
    assert torch.equal(kept[0], torch.arange(entries))
    for step in range(1, 5):
        able = int((left > step).sum())
        assert (kept[step].diff() > 0).all() and torch.isin(kept[step], kept[step - 1]).all()
        assert (left[kept[step]] > step).all() and len(kept[step]) <= -(-able * shares[step] // 1) + 1
        assert len(kept[step]) > 0 or able == 0 or not (left[kept[step - 1]] > step).any()
    everything = sampled_entries(windows, [1.0] * 3, torch.arange(entries))
    assert [len(one) for one in everything] == [int((left > step).sum()) for step in range(3)]


def test_every_index_is_as_likely_to_be_kept():
    windows, counts = torch.tensor([8, 30]), torch.zeros(38)
    for seed in range(400):
        kept = sampled_entries(windows, [1, 0.5, 0.25], torch.randperm(38, generator=torch.Generator().manual_seed(seed)))
        counts[kept[1]] += 1
    inside = torch.tensor([*[True] * 7, False, *[True] * 29, False])
    assert (counts[~inside] == 0).all() and (counts[inside] / 400 - 0.5).abs().max() < 0.12  # 4.8 standard deviations


@pytest.mark.parametrize("num_layers", [1, 3])
def test_drafting_computes_what_training_trains(num_layers):
    target = tiny_model(layers=8)
    model, runner = tiny_p_eagle(target, num_layers=num_layers), IncrementalModel(target)
    drafter, prompt = model.drafter(), 6
    text = torch.randint(0, 95, (1, 14))
    _, captured = runner.forward(text, runner.new_cache(1), drafter.capture)
    outputs = model.unroll(DocumentWindows(text, captured, torch.tensor([prompt - 1]), 6), 4)
    drafter.begin([text[0, :prompt].tolist()], text[:, prompt], captured[:, :prompt])
    for _ in range(2):  # drafting leaves nothing behind
        drafts = drafter.propose(4, 0.0, torch.zeros(1, 4)).tokens[0]
        assert drafts.tolist() == [int(model.target_ids[model.logits(output[0, 0]).argmax()]) for output in outputs]
    drafter.advance(text[:, prompt + 1 : prompt + 5], torch.tensor([4]), captured[:, prompt : prompt + 4])
    drawn = drafter.propose(4, 0.7, torch.rand(1, 4))
    for step, output in enumerate(outputs):
        expected = (model.logits(output[0, 4]) / 0.7).softmax(-1)
        torch.testing.assert_close(drawn.probabilities[0, step], expected, atol=1e-5, rtol=1e-3)


def test_more_drafts_than_trained_for_are_refused():
    target = tiny_model(layers=8)
    drafter = tiny_p_eagle(target).drafter()
    with pytest.raises(ModelError, match="trained for 4 tokens"):
        greedy_text_is_the_targets(target, drafter, 5)
    with pytest.raises(ValueError, match="trained for 4"):
        tiny_p_eagle(target).save(None, 5)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_greedy_text_with_p_eagle_is_the_targets_own(num_layers):
    target = tiny_model(layers=8, seed=3)
    answers = greedy_text_is_the_targets(target, tiny_p_eagle(target, 60, num_layers=num_layers).drafter())
    assert sum(answer.drafted for answer in answers) == 3 * sum(answer.forwards for answer in answers) > 0


def test_sampled_text_with_p_eagle_is_distributed_as_the_target():
    target = six_token_target(layers=8)
    answers = sampled_text_is_distributed_as_the_target(target, tiny_p_eagle(target, 4, mask=5).drafter())
    assert 0 < sum(answer.accepted for answer in answers) < sum(answer.drafted for answer in answers)


def test_a_file_holds_the_mask_as_servers_read_it(tmp_path):
    from safetensors.torch import load_file

    target = tiny_model(layers=8)
    model = tiny_p_eagle(target, num_layers=2)
    model.save(tmp_path, 3, torch.float32)
    for folder, first in ((tmp_path, "midlayer"), (tmp_path / "speculators", "layers.0")):
        stored = load_file(folder / "model.safetensors")
        assert "mask_embedding" not in stored and torch.equal(stored["mask_hidden"].view(1, -1), model.mask_hidden[None])
        assert torch.equal(stored["embed_tokens.weight"][MASK], model.mask_embedding)
        assert torch.equal(stored["embed_tokens.weight"][:MASK], target.get_input_embeddings().weight[:MASK])
        assert stored[f"{first}.self_attn.q_proj.weight"].shape == (32, 64)
        assert stored["layers.1.self_attn.q_proj.weight"].shape == (32, 32) and "layers.1.hidden_norm.weight" not in stored
    config, twin = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path, tmp_path / "speculators"))
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["num_hidden_layers"] == 2
    assert config["mask_token_id"] == config["ptd_token_id"] == twin["mask_token_id"] == MASK
    assert twin["speculators_model_type"] == "peagle" and twin["transformer_layer_config"]["num_hidden_layers"] == 2
    assert twin["norm_before_residual"] is config["norm_before_residual"] is False
    again = load_draft_model(tmp_path)
    assert type(again) is PEagle and again.kind == "p_eagle" and again.config == model.config
    documents = DocumentWindows(torch.randint(0, 96, (1, 9)), torch.randn(1, 9, 96), torch.tensor([3]), 4)
    for ours, theirs in zip(model.unroll(documents, 4), again.unroll(documents, 4), strict=True):
        assert torch.equal(ours, theirs)
    broken = {key: value for key, value in config.items() if key not in ("mask_token_id", "ptd_token_id")}
    (tmp_path / "config.json").write_text(json.dumps(broken))
    with pytest.raises(ModelError, match="mask_hidden is not supported"):
        load_draft_model(tmp_path)
    for wrong in (96, "95", True):
        (tmp_path / "config.json").write_text(json.dumps({**config, "mask_token_id": wrong}))
        with pytest.raises(ModelError, match="mask"):
            load_draft_model(tmp_path)


def test_the_masks_token_is_one_that_no_text_holds():
    rows = [AnswerRow("a", [0, 1, 2, 3, 9, 9], 3), AnswerRow("b", [0, 5, 6, 8, 9], 2)]
    assert unused_token(rows, 10, {2}) == 7 and unused_token(rows, 12, {11}) == 10
    assert unused_token(rows, 12, {2}, wanted=4) == 4
    everything = [AnswerRow("c", [0, 0, 1, 1, 2, 3, 3], 2)]
    assert unused_token(everything, 4, {2}) == 3 and unused_token(everything, 4, {2, 3}) == 1
    for wanted, reason in ((12, "outside the vocabulary of 12"), (2, "an end of text"), (5, "a token of these prompts")):
        with pytest.raises(ModelError, match=f"mask_token_id {wanted} is {reason}"):
            unused_token(rows, 12, {2}, wanted=wanted)
