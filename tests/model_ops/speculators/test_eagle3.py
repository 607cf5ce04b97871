"""EAGLE-3: training-time test against a plain causal decoder, drafting against training, exactness in the decoder."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from exactness import greedy_text_is_the_targets, sampled_text_is_distributed_as_the_target, six_token_target
from plain_body import plain_body
from safetensors.torch import load_file, save_file
from tiny_drafters import tiny_eagle3
from tiny_models import tiny_model

from model_ops.decoding.incremental import IncrementalModel
from model_ops.jobs import ModelError
from model_ops.speculators.backbone import draft_attention
from model_ops.speculators.backbone.draft_layers import unroll
from model_ops.speculators.decoder_config import Eagle3Config, default_layer_ids
from model_ops.speculators.draft_model import DocumentWindows
from model_ops.speculators.eagle3.network import Eagle3, Eagle3Drafter
from model_ops.speculators.factory import load_draft_model


@pytest.mark.parametrize(("newer", "num_layers"), [(False, 1), (True, 1), (False, 3), (True, 2)])
@pytest.mark.parametrize("scores_at_once", [1 << 24, 300])
def test_unrolled_steps_equal_a_plain_decoder_over_the_expanded_sequence(scores_at_once, newer, num_layers, monkeypatch):
    monkeypatch.setattr(draft_attention, "SCORES_AT_ONCE", {"cpu": scores_at_once})
    target = tiny_model(layers=8)
    model = tiny_eagle3(target, newer=newer, num_layers=num_layers)
    lengths, starts, steps = [15, 11], [6, 2], 4
    ids = torch.randint(0, 96, (2, 15))
    captured = torch.randn(2, 15, 96)
    window = max(length - 2 - start for length, start in zip(lengths, starts, strict=True))
    outputs = unroll(model, DocumentWindows(ids, captured, torch.tensor(starts), window), steps)
    fused = model.fuse(captured)
    if newer:
        parts = [
            F.rms_norm(part, (32,), norm.weight, model.config.rms_norm_eps)
            for part, norm in zip(captured.split(32, -1), model.fc_norm, strict=True)
        ]
        torch.testing.assert_close(fused, torch.cat(parts, -1) @ model.fc.weight.t(), atol=1e-5, rtol=1e-4)
    for d, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        for j in range(start, length - 2):
            tokens = ids[d, 1 : j + 2]
            hidden, positions = fused[d, : j + 1], torch.arange(j + 1)
            out = hidden
            for step in range(min(steps, length - 2 - j)):
                if step > 0:
                    tokens = torch.cat((tokens, ids[d, j + 1 + step, None]))
                    fed = F.rms_norm(out[-1:], (32,), model.norm.weight, model.config.rms_norm_eps) if newer else out[-1:]
                    hidden = torch.cat((hidden, fed))
                    positions = torch.cat((positions, torch.tensor([j + step])))
                out = plain_body(model, model.embed_tokens(tokens), hidden, positions)
                torch.testing.assert_close(outputs[step][d, j - start], out[-1], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("kv_heads", "num_layers"), [(1, 1), (2, 2), (4, 1)])
def test_ragged_windows_and_long_rows_equal_a_plain_decoder(kv_heads, num_layers):
    """Five steps; a row for the CPU's own kernel (over 512 tokens), one without a prompt, one of a single entry."""
    model = tiny_eagle3(tiny_model(layers=8, num_key_value_heads=kv_heads), num_layers=num_layers)
    lengths, starts, steps = [560, 30, 9], [548, 0, 6], 5
    windows = [length - 2 - start for length, start in zip(lengths, starts, strict=True)]
    ids, captured = torch.randint(0, 96, (3, 560)), torch.randn(3, 560, 96)
    documents = DocumentWindows(ids, captured, torch.tensor(starts), max(windows), windows=torch.tensor(windows))
    with torch.no_grad():
        outputs, fused = unroll(model, documents, steps), model.fuse(captured)
        for d, (start, window) in enumerate(zip(starts, windows, strict=True)):
            for entry in range(window):
                j = start + entry
                tokens, hidden, positions = ids[d, 1 : j + 2], fused[d, : j + 1], torch.arange(j + 1)
                out = hidden
                for step in range(min(steps, window - entry)):
                    if step > 0:
                        tokens = torch.cat((tokens, ids[d, j + 1 + step, None]))
                        hidden = torch.cat((hidden, out[-1:]))
                        positions = torch.cat((positions, torch.tensor([j + step])))
                    out = plain_body(model, model.embed_tokens(tokens), hidden, positions)
                    torch.testing.assert_close(outputs[step][d, entry], out[-1], atol=1e-4, rtol=1e-3)
    assert all((output[2, 1:] == 0).all() for output in outputs)  # after a window's end there is nothing


def test_gradients_do_not_depend_on_the_blocks(monkeypatch):
    model = tiny_eagle3(tiny_model(layers=8), num_layers=2)
    documents = DocumentWindows(torch.randint(0, 96, (2, 12)), torch.randn(2, 12, 96), torch.tensor([3, 4]), 7)
    gradients = []
    for scores_at_once in (1 << 24, 200):
        monkeypatch.setattr(draft_attention, "SCORES_AT_ONCE", {"cpu": scores_at_once})
        model.zero_grad()
        sum(out.square().sum() for out in unroll(model, documents, 3)).backward()
        gradients.append([p.grad.clone() for layer in model.body for p in layer.parameters()])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, atol=1e-4 * float(first.abs().max()), rtol=1e-3)


@pytest.mark.parametrize(("newer", "num_layers"), [(False, 1), (True, 1), (False, 3)])
def test_drafting_computes_what_training_trains(newer, num_layers):
    """The drafter in the decoder, fed a known text, gives the hidden states of the training-time test."""
    target = tiny_model(layers=8)
    model, runner = tiny_eagle3(target, newer=newer, num_layers=num_layers), IncrementalModel(target)
    drafter = Eagle3Drafter(model)
    text = torch.randint(0, 96, (1, 14))
    _, captured = runner.forward(text, runner.new_cache(1), drafter.capture)
    prompt = 6
    # the window begins at j = prompt - 1: fed the answer's first token, drafting its second
    outputs = unroll(model, DocumentWindows(text, captured, torch.tensor([prompt - 1]), 6), 2)
    drafter.begin([text[0, :prompt].tolist()], text[:, prompt], captured[:, :prompt])
    torch.testing.assert_close(drafter.hidden, outputs[0][:, 0], atol=1e-4, rtol=1e-3)
    # what it drafts: the chain of steps that training unrolls over its own drafts
    drafts = drafter.propose(3, 0.0, torch.zeros(1, 3)).tokens
    chain = torch.cat((text[:, : prompt + 1], drafts), dim=1)
    known = F.pad(captured[:, :prompt], (0, 0, 0, chain.shape[1] - prompt))
    steps = model.unroll(DocumentWindows(chain, known, torch.tensor([prompt - 1]), 1), 3)
    expected = [model.target_ids[model.logits(hidden[0, 0]).argmax()] for hidden in steps]
    assert drafts[0].tolist() == torch.stack(expected).tolist()
    # a round that took in tokens prompt..prompt+3 and emitted prompt+1..prompt+4
    drafter.advance(text[:, prompt + 1 : prompt + 5], torch.tensor([4]), captured[:, prompt : prompt + 4])
    torch.testing.assert_close(drafter.hidden, outputs[0][:, 4], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_greedy_text_with_eagle3_is_the_targets_own(num_layers):
    target = tiny_model(layers=8, seed=3)
    answers = greedy_text_is_the_targets(target, Eagle3Drafter(tiny_eagle3(target, 60, num_layers=num_layers)))
    assert sum(answer.drafted for answer in answers) == 3 * sum(answer.forwards for answer in answers) > 0


def test_sampled_text_with_eagle3_is_distributed_as_the_target():
    target = six_token_target(layers=8)
    answers = sampled_text_is_distributed_as_the_target(target, Eagle3Drafter(tiny_eagle3(target, 4)))
    assert 0 < sum(answer.accepted for answer in answers) < sum(answer.drafted for answer in answers)


def test_layer_ids_are_three_distinct_boundaries_between_blocks():
    assert default_layer_ids(10) == (2, 5, 7)
    assert default_layer_ids(7) == (2, 3, 4)
    for layers in range(4, 100):
        ids = default_layer_ids(layers)
        assert len(set(ids)) == 3 and list(ids) == sorted(ids) and ids[0] >= 1 and ids[-1] < layers
    with pytest.raises(ModelError, match="3 layers"):
        default_layer_ids(3)


def test_draft_vocabulary_is_offsets():
    model = Eagle3(Eagle3Config.for_target(tiny_model(layers=8).config, 5))
    ids = torch.tensor([0, 3, 4, 50, 95])
    model.set_draft_vocabulary(ids)
    assert model.d2t.tolist() == [0, 2, 2, 47, 91] and model.d2t.dtype == torch.int64
    assert torch.equal(model.target_ids, ids) and model.t2d.nonzero().flatten().tolist() == ids.tolist()
    with pytest.raises(ValueError, match="ascending"):
        model.set_draft_vocabulary(torch.tensor([3, 0, 4, 50, 95]))


HEAD_FILES = {
    "truncated or damaged": lambda d, weights: (d / "model.safetensors").write_bytes(
        (d / "model.safetensors").read_bytes()[:40]
    ),
    "hidden_size is 'wide', not a number above 0": lambda d, weights: edited(d, hidden_size="wide"),
    "num_attention_heads is 0, not a number": lambda d, weights: edited(d, num_attention_heads=0),
    "names 5, not 3": lambda d, weights: edited(d, eagle_aux_hidden_state_layer_ids=5),
    "layer_ids": lambda d, weights: edited(d, eagle_aux_hidden_state_layer_ids=["a", "b", "c"]),
    "hidden_act is 'gelu'": lambda d, weights: edited(d, hidden_act="gelu"),
    "head_dim": lambda d, weights: edited(d, head_dim="wide"),
    "head_dim: Input should be greater": lambda d, weights: edited(d, head_dim=-1),
    "holds an invalid value .KeyError: 'spiral'": lambda d, weights: edited(
        d, rope_parameters={"rope_type": "spiral", "rope_theta": 10_000.0}
    ),
    "layers.0.mlp.up_proj.weight is not supported": lambda d, weights: save_file(
        {**weights, "layers.0.mlp.up_proj.weight": torch.zeros(2)}, d / "model.safetensors"
    ),
    "midlayer.self_attn.q_proj.bias is not supported": lambda d, weights: save_file(
        {**weights, "midlayer.self_attn.q_proj.bias": torch.zeros(32)}, d / "model.safetensors"
    ),
}


def edited(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("expected", HEAD_FILES)
def test_heads_that_would_be_misread_are_refused_in_words(expected, tmp_path):
    tiny_eagle3(tiny_model(layers=4)).save(tmp_path, 3)
    HEAD_FILES[expected](tmp_path, load_file(tmp_path / "model.safetensors"))
    with pytest.raises(ModelError, match=expected):
        load_draft_model(tmp_path)
