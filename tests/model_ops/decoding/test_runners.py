"""Every family decodes what transformers computes without a cache, over rows of different lengths and drafts taken back."""

from __future__ import annotations

import pytest
import torch
from architectures import EVERY, build
from tiny_models import tiny_model

from model_ops.decoding import ModelDrafter, decode, new_runner
from model_ops.decoding.incremental import FINAL, IncrementalModel
from model_ops.decoding.transformers_runner import RaggedModel, StatefulModel, max_positions
from model_ops.jobs import ModelError, Progress
from model_ops.operations.quantize import quantize_directory
from model_ops.quantization.quantized_model import load_quantized

ARCHITECTURES = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "llama-rope": {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "llama-window": {"sliding_window": 6},  # a field that Llama does not have, whoever wrote it
    "mistral": {"sliding_window": 6},
    "mistral-wide": {"sliding_window": 12},  # as long as the prompt below
    "qwen2-window": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "qwen2": {},
    "qwen3": {"rope_parameters": {"rope_type": "default", "rope_theta": 5_000.0}},
}  # fmt: skip


def hf_truth(model, row):
    with torch.no_grad():
        output = model(torch.tensor([row]), output_hidden_states=True, use_cache=False)
    return output.logits[0], output.hidden_states


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_ragged_prefill_and_decoding_equal_transformers(name):
    model = tiny_model(name.split("-")[0], layers=3, tied=False, **ARCHITECTURES[name])
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(0, 96, (length,), generator=generator).tolist() for length in (23, 9, 16)]
    truth = [hf_truth(model, row) for row in rows]
    runner = IncrementalModel(model)
    cache = runner.new_cache(3)
    prompt = torch.zeros(3, 12, dtype=torch.int64)
    starts = [12, 4, 7]
    for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
        prompt[index, :start] = torch.tensor(row[:start])
    hidden, captured = runner.forward(prompt, cache, capture=(1, 2))
    for index, start in enumerate(starts):
        torch.testing.assert_close(runner.logits(hidden[index, :start]), truth[index][0][:start], atol=2e-4, rtol=1e-3)
        boundary = torch.cat([truth[index][1][k][0, :start] for k in (1, 2)], dim=-1)
        torch.testing.assert_close(captured[index, :start], boundary, atol=2e-4, rtol=1e-3)
    cache.lengths += torch.tensor(starts)
    # three tokens at once, of which two are taken back, then the same ones again: as a rejected draft would do
    following = torch.tensor([row[start : start + 3] for row, start in zip(rows, starts, strict=True)])
    wrong = following.clone()
    wrong[:, 1:] = 5
    runner.forward(wrong, cache)
    cache.lengths += 1
    hidden, _ = runner.forward(following[:, 1:], cache)
    cache.lengths += 2
    for index, start in enumerate(starts):
        expected = truth[index][0][start + 1 : start + 3]
        torch.testing.assert_close(runner.logits(hidden[index]), expected, atol=2e-4, rtol=1e-3)
    cache.keep(torch.tensor([2, 0]))
    hidden, _ = runner.forward(torch.tensor([[rows[2][10]], [rows[0][15]]]), cache)
    torch.testing.assert_close(runner.logits(hidden[0]), truth[2][0][10:11], atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(runner.logits(hidden[1]), truth[0][0][15:16], atol=2e-4, rtol=1e-3)


def test_the_last_boundary_is_the_state_before_the_final_norm():
    model = tiny_model(layers=3)
    runner = IncrementalModel(model)
    hidden, captured = runner.forward(torch.tensor([[4, 5, 6]]), runner.new_cache(1), capture=(3,))
    torch.testing.assert_close(model.model.norm(captured), hidden, atol=1e-5, rtol=1e-4)


def test_fused_weights_are_shared_and_the_model_still_works():
    model = tiny_model("qwen2", layers=2)
    ids = torch.tensor([[3, 7, 9, 11]])
    before = model(ids).logits
    runner = IncrementalModel(model)
    attention = model.model.layers[0].self_attn
    assert attention.q_proj.weight.data_ptr() == runner.blocks[0].qkv.weight.data_ptr()
    assert torch.equal(model(ids).logits, before)


def test_int8_layers_run_incrementally(tmp_path):
    tiny_model("qwen2", layers=2).save_pretrained(tmp_path / "m")
    quantize_directory(tmp_path / "m", tmp_path / "q", Progress())
    model = load_quantized(tmp_path / "q")
    ids = torch.randint(0, 96, (2, 11))
    expected = model(ids).logits
    runner = IncrementalModel(model)
    hidden, _ = runner.forward(ids, runner.new_cache(2))
    torch.testing.assert_close(runner.logits(hidden), expected, atol=1e-3, rtol=1e-2)
    assert torch.equal(model(ids).logits, expected)


def test_unknown_architectures_are_refused():
    model = tiny_model(layers=2)
    model.config.model_type = "gpt2"
    with pytest.raises(ModelError, match="gpt2"):
        IncrementalModel(model)


CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize("name", EVERY)
def test_cached_states_and_logits_are_those_of_the_whole_row(name):
    model = build(name, "eager", num_hidden_layers=4)
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randint(3, 61, (length,), generator=generator) for length in (34, 9, 5)]
    starts = torch.tensor([22, 3, 1])
    with torch.no_grad():
        truth = [model(row[None], use_cache=False, output_hidden_states=True) for row in rows]
    runner = new_runner(model)
    cache = runner.new_cache(3)
    prompt = torch.zeros(3, 22, dtype=torch.int64)
    for row, ids, start in zip(prompt, rows, starts, strict=True):
        row[:start] = ids[:start]
    hidden, captured = runner.forward(prompt, cache, capture=(0, 2, FINAL))
    for place, (found, start) in enumerate(zip(truth, starts, strict=True)):
        torch.testing.assert_close(runner.logits(hidden[place, :start]), found.logits[0, :start].float(), **CLOSE)
        read = torch.cat([found.hidden_states[layer][0, :start] for layer in (0, 2, -1)], dim=-1)
        torch.testing.assert_close(captured[place, :start], read, **CLOSE)
    cache.lengths += starts
    following = torch.stack([ids[start : start + 4] for ids, start in zip(rows, starts, strict=True)])
    wrong = following.clone()
    wrong[:, 1:] = 5
    runner.forward(wrong, cache)  # drafts, of which only the first token stays
    cache.lengths += 1
    hidden, _ = runner.forward(following[:, 1:], cache)
    for place, (found, start) in enumerate(zip(truth, starts, strict=True)):
        torch.testing.assert_close(runner.logits(hidden[place]), found.logits[0, start + 1 : start + 4].float(), **CLOSE)
    cache.lengths += 3
    cache.keep(torch.tensor([0]))
    hidden, _ = runner.forward(rows[0][None, 26:], cache)
    torch.testing.assert_close(runner.logits(hidden[0]), truth[0].logits[0, 26:].float(), **CLOSE)


@pytest.mark.parametrize(
    ("name", "kind", "noise"), [("qwen3", IncrementalModel, 0.02), ("gemma2", RaggedModel, 0.06), ("lfm2", StatefulModel, 0.02)]
)
def test_drafts_of_another_model_change_no_greedy_text(name, kind, noise):
    target, draft = new_runner(build(name, "eager")), build(name, "eager", seed=6)
    assert type(target) is kind
    generator = torch.Generator().manual_seed(1)
    draft.load_state_dict(
        {
            key: value + noise * torch.randn(value.shape, generator=generator)
            for key, value in build(name, "eager").state_dict().items()
        }
    )
    prompts = [[7, 8, 9, 10, 11], [20, 3], [4]]
    options = {"eos_ids": {2}, "temperature": 0.0, "max_new_tokens": 12}
    plain = decode(target, prompts, list("abc"), **options)
    drafter = ModelDrafter(new_runner(draft), 61)
    drafted = decode(target, prompts, list("abc"), drafter=drafter, num_speculative_tokens=3, **options)
    assert [answer.tokens for answer in drafted] == [answer.tokens for answer in plain]
    assert 0 < sum(answer.accepted for answer in drafted) < sum(answer.drafted for answer in drafted)


def test_an_unknown_family_runs_by_its_own_forward():
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "olmo",
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        eos_token_id=2,
    )
    runner = new_runner(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval())
    assert type(runner) is RaggedModel


def test_a_rope_that_changes_with_length_keeps_rows_below_its_change():
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 64,
        "factor": 4.0,
    }
    model = build("phi3", "eager", rope_parameters=rope, original_max_position_embeddings=64)
    assert max_positions(model.config) == 64 == new_runner(model).max_positions
    assert max_positions(tiny_model("qwen3", layers=2).config) == 256
