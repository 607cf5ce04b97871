"""Adapters of fused experts and routers: the formula, what learns, what peft reads, what is merged, what is refused."""

import pytest
import torch
from torch import nn

from model_ops.adapters import LoraSettings, save_adapter
from model_ops.adapters.lora import (
    adaptable_names,
    adaptable_parameters,
    adapted_layers,
    adapted_names,
    adapted_parameters,
    add_adapters,
    merge_adapters,
)
from model_ops.jobs.job import ModelError
from model_ops.models.model_directory import load_model, save_model
from model_ops.models.tiny_families import OWN, tiny_model
from tests.model_ops.models.saved_adapters import load_adapter

MIXTURES = sorted(family for family in OWN if adaptable_parameters(tiny_model(family)))
ROW = torch.randint(3, 61, (1, 40), generator=torch.Generator().manual_seed(3))


def routers_of(model):
    return sorted({name.split(".")[-2] for name in adaptable_parameters(model) if name.endswith(".weight")})


def settings_of(model):
    linear = adaptable_names(model)[0].rpartition(".")[2]
    return LoraSettings(rank=4, alpha=8, rslora=True, targets=[linear, "experts", *routers_of(model)])


def stirred(model, settings):
    """The model with adapters that change what it says."""
    add_adapters(model, settings)
    torch.manual_seed(2)
    for layer in (*adapted_layers(model).values(), *adapted_parameters(model).values()):
        nn.init.normal_(layer.lora_B, std=0.1)
    return model


def spoken(model):
    with torch.no_grad():
        return model(ROW, use_cache=False).logits


def test_the_mixtures_of_the_table_are_known():
    assert {"qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "glm4_moe", "qwen3_next"} <= set(MIXTURES)


@pytest.mark.parametrize("family", MIXTURES)
def test_adapted_output_and_gradients_are_those_of_the_adapted_weight(family):
    model = tiny_model(family).eval()
    add_adapters(model, settings_of(model))
    adapters = adapted_parameters(model)
    assert {name.rpartition(".")[2] for name in adapters} >= {"gate_up_proj", "down_proj"}
    torch.manual_seed(2)
    for adapter in adapters.values():
        nn.init.normal_(adapter.lora_B, std=0.1)
    wanted = [part for adapter in adapters.values() for part in (adapter.lora_A, adapter.lora_B)]
    ours = model(ROW, use_cache=False).logits
    grads = torch.autograd.grad(ours.square().sum(), wanted)

    plain = tiny_model(family).eval()
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "lora_" not in name})
    weights = {name: plain.get_parameter(name) + adapter.update() for name, adapter in adapters.items()}
    theirs = torch.func.functional_call(plain, weights, (ROW,), {"use_cache": False}).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for one, other in zip(grads, torch.autograd.grad(theirs.square().sum(), wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=1e-4)
    assert all(grad.abs().sum() > 0 for grad in grads)


@pytest.mark.parametrize("family", MIXTURES)
def test_peft_reads_what_is_saved_and_both_merge_alike(family, tmp_path, tiny_tokenizer):
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install millrace[test]")
    save_model(tiny_model(family), tiny_tokenizer, tmp_path / "base", torch.float32)
    base = load_model(tmp_path / "base")
    settings = settings_of(base)
    before = spoken(base)
    ours = stirred(base, settings)
    save_adapter(ours, settings, tmp_path / "adapter", str(tmp_path / "base"))
    theirs = peft.PeftModel.from_pretrained(load_model(tmp_path / "base"), tmp_path / "adapter").eval()
    with torch.no_grad():
        expected = theirs(ROW, use_cache=False).logits
    torch.testing.assert_close(spoken(ours), expected, rtol=1e-4, atol=1e-4)
    assert (expected - before).abs().max() > 0.01

    again = load_model(tmp_path / "base")
    load_adapter(again, tmp_path / "adapter")
    assert torch.equal(spoken(again), spoken(ours))
    assert merge_adapters(again, torch.float32) == pytest.approx(1, abs=1e-3)
    assert not any("lora_" in name for name in again.state_dict()) and set(again.state_dict()) == set(
        load_model(tmp_path / "base").state_dict()
    )
    torch.testing.assert_close(spoken(again), expected, rtol=1e-4, atol=1e-4)


def test_experts_have_no_adapter_unless_named():
    model = tiny_model("qwen3_moe")
    counts = add_adapters(model, LoraSettings(rank=4))
    assert not adapted_parameters(model) and counts.left_out_parameters > 0
    model = tiny_model("qwen3_moe")
    counts = add_adapters(model, settings_of(model))
    assert len(adapted_parameters(model)) == 6 and counts.left_out_parameters == 0 and counts.adapted_layers == 8
    assert counts.trained_parameters == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_a_target_names_experts_with_their_module():
    model = tiny_model("qwen3_moe")
    assert sorted(adapted_names(model, ["experts.down_proj", "mlp.gate"])) == [
        f"model.layers.{layer}.mlp.{last}" for layer in (0, 1) for last in ("experts.down_proj", "gate.weight")
    ]
    with pytest.raises(ModelError, match=r"'down_proj' matches .*, which takes no adapter by this name; there are .*experts"):
        adapted_names(model, ["down_proj"])


def test_dropout_reaches_the_adapters_of_experts_in_training_alone():
    model = stirred(tiny_model("qwen3_moe"), LoraSettings(rank=4, dropout=0.5, targets=["experts"]))
    assert torch.equal(spoken(model.eval()), spoken(model))
    assert not torch.equal(spoken(model.train()), spoken(model))


def test_an_update_below_the_spacing_of_bfloat16_is_merged_on_average():
    """Rounding to nearest would give the frozen weights back."""
    model = tiny_model(MIXTURES[0])
    add_adapters(model, LoraSettings(rank=4, targets=["experts"]))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
        for layer in adapted_parameters(model).values():
            nn.init.normal_(layer.lora_B, std=1e-5)
    assert merge_adapters(model) == pytest.approx(1, abs=0.25)
