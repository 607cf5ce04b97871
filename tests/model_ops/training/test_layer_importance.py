"""Layers are removed where it costs least, measured on documents, and the model is left as it was."""

import numpy as np
import pytest
import torch
from tiny_models import tiny_model

import model_ops.models.attention  # noqa: F401 (registers "packed")
from model_ops.documents import Document, held_out_loss, mean_loss
from model_ops.families.loading import layer_list
from model_ops.jobs import ModelError
from model_ops.pruning.layer_importance import layers_fit, least_important, make_student


def documents(count=6, length=24):
    generator = np.random.default_rng(0)
    return [Document(f"r{i}", generator.integers(3, 96, length), np.arange(length) > 4) for i in range(count)]


def packed(model_type="qwen3", **changes):
    model = tiny_model(model_type, layers=6, **changes)
    model.set_attn_implementation("packed")
    return model


def without_effect(model, layer):
    with torch.no_grad():
        layer_list(model)[1][layer].self_attn.o_proj.weight.zero_()
        layer_list(model)[1][layer].mlp.down_proj.weight.zero_()


@torch.no_grad()
def own_text(model, count=8, length=32):
    """Documents that the model sampled, which no other model predicts better on average."""
    torch.manual_seed(1)
    ids = torch.randint(3, 96, (count, 1))
    for _ in range(length):
        logits = torch.stack([model(row[None], use_cache=False).logits[0, -1] for row in ids])
        ids = torch.cat([ids, logits.softmax(-1).multinomial(1)], dim=1)
    return [Document(f"r{i}", row.numpy(), np.arange(length + 1) > 0) for i, row in enumerate(ids)]


def test_layers_without_effect_go_first():
    model = packed()
    for layer in (4, 1):
        without_effect(model, layer)
    rows = own_text(model)
    before = mean_loss(held_out_loss(model, rows))
    search = least_important(model, rows, 3)
    assert {removed.layer for removed in search.removed[:2]} == {1, 4} and len(search.remaining) == 3
    assert search.loss == pytest.approx(before, abs=1e-5)
    assert [removed.loss for removed in search.removed[:2]] == pytest.approx([before, before], abs=1e-5)
    assert sorted([*search.remaining, *(removed.layer for removed in search.removed)]) == list(range(6))


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_the_loss_said_is_that_of_the_student_made(family):
    """gemma3: windows are chosen by a layer's place, so a bypassed layer must keep its place."""
    model = packed(
        family,
        **(
            {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 3} if family == "gemma3_text" else {}
        ),
    )
    rows = documents()
    seen = []
    search = least_important(model, rows, 2, after_layer=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 11) for done in range(1, 12)]
    student = make_student(model, search.remaining)
    assert mean_loss(held_out_loss(student, rows)) == pytest.approx(search.removed[-1].loss, abs=1e-4)
    alone = [mean_loss(held_out_loss(make_student(model, [i for i in range(6) if i != gone]), rows)) for gone in range(6)]
    assert search.removed[0].layer == int(np.argmin(alone))
    assert mean_loss(held_out_loss(model, rows)) == pytest.approx(search.loss, abs=1e-6)


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(ValueError, match="cannot remove 6 of 6"):
        least_important(packed(), documents(), 6)
    with pytest.raises(ValueError, match="no document holds a target"):
        least_important(packed(), [Document("r", np.arange(5, 20), np.zeros(15, bool))], 1)
    model = packed()
    model.config.num_hidden_layers = 5
    with pytest.raises(ModelError, match="has no list of its 5 layers"):
        layer_list(model)


def test_a_dense_first_layer_stays_where_the_family_has_it():
    model = tiny_model(
        "deepseek_v3",
        layers=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=16,
        first_k_dense_replace=1,
        q_lora_rank=None,
        kv_lora_rank=16,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        num_key_value_heads=4,
        head_dim=4,
    )
    model.set_attn_implementation("packed")
    assert layers_fit(model, [0, 2]) and not layers_fit(model, [1, 2])
    without_effect_of_mla(model, 0)
    search = least_important(model, documents(), 2)
    assert search.remaining[0] == 0
    make_student(model, search.remaining)


def without_effect_of_mla(model, layer):
    with torch.no_grad():
        for name, parameter in layer_list(model)[1][layer].named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
