"""Packed rows: the same logits and gradients as each document alone, and no look at a neighbour."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import model_ops.models.attention as attention

LENGTHS = [5, 70, 1, 33, 90, 34, 64, 3]


def models():
    torch.manual_seed(3)
    config = {
        "vocab_size": 61,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "max_position_embeddings": 256,
    }
    packed = Qwen3ForCausalLM(Qwen3Config(**config, attn_implementation="packed"))
    plain = Qwen3ForCausalLM(Qwen3Config(**config, attn_implementation="sdpa"))
    with torch.no_grad():
        for parameter in packed.parameters():
            parameter.mul_(3.0)  # initial weights are small enough to hide what attention does
    plain.load_state_dict(packed.state_dict())
    return packed, plain


def row():
    ids = torch.randint(61, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    return ids, positions


def packed_logits(model, ids, positions, lengths=tuple(LENGTHS)):
    return model(ids[None], position_ids=positions[None], use_cache=False, document_lengths=list(lengths)).logits[0]


@pytest.mark.parametrize("explicit_up_to", [512, 60, 0])
def test_packed_equals_each_document_alone(monkeypatch, explicit_up_to):
    monkeypatch.setattr(attention, "EXPLICIT_UP_TO", dict.fromkeys(attention.EXPLICIT_UP_TO, explicit_up_to))
    packed, plain = models()
    ids, positions = row()
    ours = packed_logits(packed, ids, positions)
    alone = torch.cat([plain(document[None], use_cache=False).logits[0] for document in ids.split(LENGTHS)])
    torch.testing.assert_close(ours, alone, rtol=1e-4, atol=1e-4)
    ours.square().sum().backward()
    alone.square().sum().backward()
    for (name, one), other in zip(packed.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3 * float(other.grad.abs().max()), msg=name)


def test_without_isolation_the_logits_would_differ():
    packed, _ = models()
    ids, positions = row()
    leaking = packed_logits(packed, ids, positions, [sum(LENGTHS)])
    assert (packed_logits(packed, ids, positions) - leaking).abs().max() > 0.05


def test_a_changed_document_changes_no_other():
    packed, _ = models()
    ids, positions = row()
    changed = ids.clone()
    changed[5:75] = (changed[5:75] + 1) % 61
    before, after = packed_logits(packed, ids, positions), packed_logits(packed, changed, positions)
    assert torch.equal(before[:5], after[:5])
    assert torch.equal(before[75:], after[75:])
    assert not torch.allclose(before[5:75], after[5:75])


def test_bfloat16_products_are_no_worse_than_torchs_own():
    packed, plain = models()
    ids, positions = row()
    exact = packed_logits(packed, ids, positions)
    with torch.autocast("cpu", torch.bfloat16):
        ours = packed_logits(packed, ids, positions)
        torchs = torch.cat([plain(document[None], use_cache=False).logits[0] for document in ids.split(LENGTHS)])
    assert 0 < (ours - exact).abs().mean() < 1.3 * (torchs - exact).abs().mean()


def test_a_batch_without_document_lengths_is_one_document_a_row():
    packed, plain = models()
    ids = torch.randint(61, (3, 20), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(packed(ids, use_cache=False).logits, plain(ids, use_cache=False).logits, rtol=1e-4, atol=1e-4)


def test_what_it_cannot_do_exactly_is_refused():
    packed, _ = models()
    ids, positions = row()
    with pytest.raises(ValueError, match="add up to 3"):
        packed_logits(packed, ids, positions, [1, 2])
    cache = packed(ids[None, :4], use_cache=True).past_key_values
    with pytest.raises(ValueError, match="no cache"):
        packed(ids[None, 4:5], past_key_values=cache, use_cache=True)


def test_a_kernel_that_shares_key_heads_gives_what_repeated_ones_give(monkeypatch):
    torch.manual_seed(0)
    streams = [torch.randn(2, heads, 40, 16, requires_grad=True) for heads in (6, 2, 2)]
    monkeypatch.setattr(attention, "EXPLICIT_UP_TO", {})
    found = []
    for grouped in (False, True):
        monkeypatch.setattr(attention, "_kernel_groups_heads", lambda *_, grouped=grouped: grouped)
        attended = attention._attend(*streams, scaling=0.25, dropout=0.0)
        found.append([attended, *torch.autograd.grad(attended.square().sum(), streams)])
    for repeated, shared in zip(*found, strict=True):
        torch.testing.assert_close(shared, repeated)
