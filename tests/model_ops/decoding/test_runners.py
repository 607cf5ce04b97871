"""Every family decodes what transformers computes without a cache, over rows of different lengths and drafts taken back."""

import pytest
import torch
from architectures import EVERY, build
from tiny_models import tiny_model

from model_ops.decoding.decode_loop import decode
from model_ops.decoding.drafters import ModelDrafter
from model_ops.decoding.incremental import FINAL, IncrementalModel
from model_ops.decoding.runner import new_runner
from model_ops.decoding.transformers_runner import RaggedModel, StatefulModel, max_positions

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
