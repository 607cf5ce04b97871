"""The incremental runner computes what transformers computes, over rows of different lengths."""

from __future__ import annotations

import pytest
import torch
from tiny_models import tiny_model

from model_ops.decoding.incremental import IncrementalModel
from model_ops.jobs.job import ModelError, Progress
from model_ops.operations.quantize import quantize_directory
from model_ops.quantization.quantized_model import load_quantized

ARCHITECTURES = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "llama-rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "llama-window": {"sliding_window": 6},  # a field that Llama does not have, whoever wrote it
    "mistral": {"sliding_window": 6},
    "mistral-wide": {"sliding_window": 12},  # as long as the prompt below
    "qwen2-window": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "qwen2": {},
    "qwen3": {"rope_parameters": {"rope_type": "default", "rope_theta": 5_000.0}},
}


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
