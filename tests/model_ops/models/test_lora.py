"""Adapters: the formula and its gradients, nothing frozen moves, PEFT reads what is saved, merged is what was trained."""

import json

import pytest
import torch
from architectures import ARCHITECTURES, build
from torch import nn
from torch.nn import functional as F

from model_ops.adapters import LoraSettings, save_adapter
from model_ops.adapters.lora import (
    LoraLinear,
    adaptable_names,
    adaptable_parameters,
    adapted_layers,
    adapted_names,
    adapted_parameters,
    add_adapters,
    merge_adapters,
)
from model_ops.documents import Document, PackedPlan, to_batch
from model_ops.jobs import ModelError, Progress
from model_ops.models.model_directory import load_model, save_model
from model_ops.models.tiny_families import OWN, tiny_model
from model_ops.objectives.sft import next_token_loss
from model_ops.training import TrainingSettings, checkpoint_activations, train
from tests.model_ops.models.saved_adapters import load_adapter

MIXTURES = sorted(family for family in OWN if adaptable_parameters(tiny_model(family)))
ROW = torch.randint(3, 61, (1, 40), generator=torch.Generator().manual_seed(3))


def routers_of(model):
    return sorted({name.split(".")[-2] for name in adaptable_parameters(model) if name.endswith(".weight")})


def settings_of(model):
    linear = adaptable_names(model)[0].rpartition(".")[2]
    return LoraSettings(rank=4, alpha=8, rslora=True, targets=[linear, "experts", *routers_of(model)])


def stirred_experts(model, settings):
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
    ours = stirred_experts(base, settings)
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
    model = stirred_experts(tiny_model("qwen3_moe"), LoraSettings(rank=4, dropout=0.5, targets=["experts"]))
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


EVERY = sorted(ARCHITECTURES)
SETTINGS = LoraSettings(rank=4, alpha=8)


def documents(lengths=(5, 70, 33, 90)):
    generator = torch.Generator().manual_seed(11)
    ids = [torch.randint(3, 61, (length,), generator=generator) for length in lengths]
    return [Document(f"row-{i}", one.numpy(), (one > 20).numpy()) for i, one in enumerate(ids)]


def stirred(model, settings=SETTINGS):
    """The model with adapters that change what it says."""
    add_adapters(model, settings)
    torch.manual_seed(2)
    for layer in adapted_layers(model).values():
        nn.init.normal_(layer.lora_B, std=0.1)
    return model


def logits_of(model, batch):
    return model(**batch.model_inputs).logits[0]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_fused_product_and_its_gradients_are_the_formulas(bias, dtype):
    torch.manual_seed(0)
    linear = nn.Linear(12, 7, bias=bias).to(dtype).requires_grad_(False)
    layer = LoraLinear.over(linear, LoraSettings(rank=3, alpha=5, rslora=True), torch.Generator().manual_seed(1))
    nn.init.normal_(layer.lora_B)
    given = torch.randn(2, 5, 12, dtype=dtype, requires_grad=True)
    ours = layer(given)
    down, up = layer.lora_A.to(dtype), layer.lora_B.to(dtype)
    theirs = F.linear(given, linear.weight, linear.bias) + 5 / 3**0.5 * (given @ down.T) @ up.T
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(theirs)
    wanted = (given, layer.lora_A, layer.lora_B)
    for one, other in zip(
        torch.autograd.grad(ours, wanted, upstream), torch.autograd.grad(theirs, wanted, upstream), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_dropout_reaches_the_adapter_alone():
    torch.manual_seed(0)
    linear = nn.Linear(12, 7).requires_grad_(False)
    layer = LoraLinear.over(linear, LoraSettings(rank=3, dropout=0.5), torch.Generator().manual_seed(1))
    given = torch.randn(50, 12, requires_grad=True)
    torch.testing.assert_close(layer.train()(given), linear(given))  # B is zero
    nn.init.normal_(layer.lora_B)
    torch.manual_seed(4)
    ours = layer(given)
    torch.manual_seed(4)
    theirs = linear(given) + layer.scaling * F.dropout(given, 0.5) @ layer.lora_A.T @ layer.lora_B.T
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), given)[0] for y in (ours, theirs)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.eval()(given), linear(given) + layer.scaling * given @ layer.lora_A.T @ layer.lora_B.T)


@pytest.mark.parametrize("name", EVERY)
def test_adapters_learn_and_nothing_frozen_moves(name, tmp_path):
    model = build(name).bfloat16()
    for module in model.modules():  # as load_model leaves them: only weights are in bfloat16
        for key, buffer in module._buffers.items():
            if buffer is not None and "inv_freq" in key:
                module._buffers[key] = buffer.float()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    counts = add_adapters(model, SETTINGS)
    settings = TrainingSettings(steps=12, learning_rate=3e-2, tokens_per_step=200, max_length=256).resolved()
    rows = documents()
    first = float(next_token_loss(model, to_batch(rows)).terms["loss"].sum.detach())
    train(model, PackedPlan(rows, settings), next_token_loss, settings, tmp_path / ".work", Progress(), "sft")
    assert float(next_token_loss(model, to_batch(rows)).terms["loss"].sum.detach()) < 0.9 * first
    after = model.state_dict()
    assert all(torch.equal(value, after[key]) and value.dtype == after[key].dtype for key, value in before.items())
    adapted = {key: value for key, value in after.items() if key not in before}
    assert sum(value.numel() for value in adapted.values()) == counts.trained_parameters
    assert all(value.dtype == torch.float32 for value in adapted.values())
    experts = sum(value.numel() for key, value in before.items() if ".experts." in key and value.ndim == 3)
    assert counts.left_out_parameters == experts and (experts > 0) == (name in ("qwen3_moe", "gpt_oss"))
    assert counts.adapted_layers == 2 * (4 if experts else 7)


@pytest.mark.parametrize("name", EVERY)
def test_peft_loads_what_is_saved_and_says_the_same(name, tmp_path, tiny_tokenizer):
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install millrace[test]")
    base = build(name)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.copy_(parameter.bfloat16())
    save_model(base, tiny_tokenizer, tmp_path / "base")
    ours = stirred(load_model(tmp_path / "base"), LoraSettings(rank=4, alpha=8, rslora=True))
    save_adapter(ours, LoraSettings(rank=4, alpha=8, rslora=True), tmp_path / "adapter", str(tmp_path / "base"))
    theirs = peft.PeftModel.from_pretrained(load_model(tmp_path / "base", attention="sdpa"), tmp_path / "adapter").eval()
    row = torch.from_numpy(documents()[1].input_ids).long()[None]
    spoken = theirs(row, use_cache=False).logits
    torch.testing.assert_close(ours(row, use_cache=False).logits, spoken, rtol=1e-4, atol=1e-4)
    assert (spoken - base(row, use_cache=False).logits).abs().max() > 0.01
    again = load_model(tmp_path / "base")
    load_adapter(again, tmp_path / "adapter")
    assert torch.equal(again(row, use_cache=False).logits, ours(row, use_cache=False).logits)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    dense = ["down_proj", "gate_proj", "up_proj"] if name not in ("qwen3_moe", "gpt_oss") else []
    assert config["target_modules"] == sorted([*dense, "k_proj", "o_proj", "q_proj", "v_proj"])


def greedy(model, prompt, tokens=16):
    for _ in range(tokens):
        prompt = torch.cat([prompt, model(prompt, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    return prompt


@pytest.mark.parametrize("name", EVERY)
def test_merged_weights_say_what_the_adapters_said(name, tmp_path, tiny_tokenizer):
    model = stirred(build(name))
    batch, prompt = to_batch(documents()), torch.tensor([[5, 9, 30]])
    adapted, text = logits_of(model, batch), greedy(model, prompt)
    assert (adapted - logits_of(build(name), batch)).abs().max() > 0.01
    assert merge_adapters(model, torch.float32) == pytest.approx(1, abs=1e-5)
    assert not adapted_layers(model)
    torch.testing.assert_close(logits_of(model, batch), adapted, rtol=1e-4, atol=1e-4)
    assert torch.equal(greedy(model, prompt), text)
    model = stirred(build(name))
    assert merge_adapters(model) == pytest.approx(1, abs=0.05)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    save_model(model.float(), tiny_tokenizer, tmp_path)
    assert torch.equal(logits_of(load_model(tmp_path), batch), logits_of(model, batch))
    assert (logits_of(model, batch) - adapted).abs().median() < 0.1 * adapted.std()


@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_checkpointed_blocks_give_the_same_gradients(checkpointing):
    batch = to_batch(documents())
    gradients = []
    for kept in ("none", checkpointing):
        model = stirred(build("qwen3")).train()
        checkpoint_activations(model, kept)
        with torch.autocast("cpu", torch.bfloat16):
            next_token_loss(model, batch).terms["loss"].sum.backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_a_target_that_matches_nothing_is_named_with_names_that_exist():
    with pytest.raises(ModelError, match=r"'query' matches no layer.*down_proj.*model\.layers\.0"):
        add_adapters(build("qwen3"), LoraSettings(targets=["q_proj", "query"]))
    for target, found in (("lm_head", "lm_head"), ("embed_tokens", "model.embed_tokens"), ("norm", "model.norm")):
        with pytest.raises(ModelError, match=f"'{target}' matches {found}, which takes no adapter"):
            add_adapters(build("qwen3"), LoraSettings(targets=[target]))
    for name, target in (("qwen3_moe", "gate_up_proj"), ("gpt_oss", "weight"), ("gpt_oss", "sinks")):
        with pytest.raises(ModelError, match=f"'{target}' matches .*takes no adapter"):
            add_adapters(build(name), LoraSettings(targets=[target]))


def test_targets_choose_by_the_end_of_names():
    model = build("qwen3")
    add_adapters(model, LoraSettings(targets=["self_attn.q_proj", "layers.1.mlp.up_proj"]))
    assert list(adapted_layers(model)) == [
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.mlp.up_proj",
    ]
