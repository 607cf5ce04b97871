"""Adapters of other trainers: what is imported answers as peft does with base and adapter apart; bad ones are refused."""

import json

import pytest
import torch
from peft import IA3Config, LoraConfig, PrefixTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_models import run_job

from model_ops.adapters.adapter_base import base_of_adapter, is_adapter, model_places
from model_ops.jobs import ModelError
from model_ops.models.model_directory import load_model, load_tokenizer, save_model
from model_ops.operations import import_base
from pipelines.contract.base_choice import BaseModelError, look_at_base

EVERY_LAYER = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
KINDS = {
    "lora": LoraConfig(r=4, lora_alpha=8, target_modules=EVERY_LAYER, task_type="CAUSAL_LM"),
    "ranks per layer": LoraConfig(
        r=4,
        target_modules=EVERY_LAYER,
        rank_pattern={"q_proj": 2},
        alpha_pattern={"q_proj": 32},
        use_rslora=True,
        task_type="CAUSAL_LM",
    ),
    "dora": LoraConfig(r=4, target_modules=["q_proj", "down_proj"], use_dora=True, task_type="CAUSAL_LM"),
    "layers saved whole": LoraConfig(r=4, target_modules="all-linear", modules_to_save=["norm"], task_type="CAUSAL_LM"),
    "adapted embeddings": LoraConfig(r=4, target_modules=["q_proj", "embed_tokens"], task_type="CAUSAL_LM"),
    "embeddings saved whole": LoraConfig(
        r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"], task_type="CAUSAL_LM"
    ),
    "adapted embeddings, kept tied": LoraConfig(
        r=4, target_modules=["q_proj", "embed_tokens"], ensure_weight_tying=True, task_type="CAUSAL_LM"
    ),
    "ia3": IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM"),
}


@pytest.fixture
def base(tiny_model, tmp_path):
    """The tiny model in float32: merging rounds nothing away. Its embeddings are tied."""
    model = load_model(tiny_model, attention="sdpa")
    assert model.config.tie_word_embeddings
    save_model(model, load_tokenizer(tiny_model), tmp_path / "base", torch.float32)
    return tmp_path / "base"


def adapter_of(base, config, directory, **saving):
    """Writes an adapter as peft's users do; returns the adapted model."""
    model = load_model(base, attention="sdpa")
    model.name_or_path = model.config._name_or_path = str(base)
    torch.manual_seed(3)
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad or "lora" in name:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    adapted.save_pretrained(directory, **saving)
    return adapted.eval()


def imported(adapter, output):
    run_job(import_base, output, model=str(adapter))
    return load_model(output, attention="sdpa")


@pytest.mark.parametrize("kind", KINDS)
def test_the_imported_model_answers_as_base_and_adapter_do(kind, base, tmp_path):
    adapted = adapter_of(base, KINDS[kind], tmp_path / "adapter")
    assert is_adapter(tmp_path / "adapter") and base_of_adapter(tmp_path / "adapter") == str(base)
    model = imported(tmp_path / "adapter", tmp_path / "merged")
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        plain, wanted, found = load_model(base, attention="sdpa")(ids).logits, adapted(ids).logits, model(ids).logits
    assert (wanted - plain).abs().max() > 1e-2
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=2e-4)
    assert load_tokenizer(tmp_path / "merged").chat_template == load_tokenizer(base).chat_template


def test_a_vocabulary_that_grew_comes_with_the_adapters_tokenizer(base, tmp_path):
    tokenizer = load_tokenizer(base)
    tokenizer.add_tokens(["<|handover|>", "<|refund|>"])
    model = load_model(base, attention="sdpa")
    model.config._name_or_path = str(base)
    model.resize_token_embeddings(len(tokenizer))
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=True)
    tokenizer.save_pretrained(tmp_path / "adapter")
    merged = imported(tmp_path / "adapter", tmp_path / "merged")
    assert merged.get_input_embeddings().num_embeddings == len(tokenizer)
    assert load_tokenizer(tmp_path / "merged").encode("<|refund|>") == [len(tokenizer) - 1]


def test_a_base_beside_the_adapter_may_be_named_by_a_relative_path(base, tmp_path):
    adapter_of(base, KINDS["lora"], tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "../base"}))
    assert model_places(str(tmp_path / "adapter")) == [str(tmp_path / "adapter"), str(base)]
    assert model_places(str(base)) == [str(base)] and model_places("tiny") == ["tiny"]


def refused(adapter, tmp_path):
    with pytest.raises(ModelError) as caught:
        imported(adapter, tmp_path / "merged")
    assert not (tmp_path / "merged/config.json").exists()
    return str(caught.value)


def test_adapters_that_cannot_be_merged_are_one_sentence(base, tmp_path):
    adapter = tmp_path / "adapter"
    adapter_of(base, KINDS["lora"], adapter)
    config, tensors = adapter / "adapter_config.json", adapter / "adapter_model.safetensors"
    whole, settings = tensors.read_bytes(), json.loads(config.read_text())

    weights = load_file(tensors)
    first = sorted(weights)[0]
    save_file({name: value for name, value in weights.items() if name != first}, tensors)
    assert "lacks tensors" in refused(adapter, tmp_path)
    save_file({**weights, first.replace("layers.0", "layers.77"): weights[first].clone()}, tensors)
    assert "layers.77" in refused(adapter, tmp_path)
    save_file({**weights, first: weights[first][:, :-1].contiguous()}, tensors)
    assert "size mismatch" in refused(adapter, tmp_path)
    tensors.write_bytes(whole[:-100])
    assert "truncated or damaged" in refused(adapter, tmp_path)
    tensors.rename(adapter / "adapter_model.bin")
    assert "pickle" in refused(adapter, tmp_path)
    (adapter / "adapter_model.bin").unlink()
    assert "copy the whole adapter" in refused(adapter, tmp_path)
    tensors.write_bytes(whole)
    config.write_text(json.dumps({**settings, "base_model_name_or_path": "../nowhere"}))
    assert "no directory here and no Hugging Face id" in refused(adapter, tmp_path)
    config.write_text(json.dumps({**settings, "base_model_name_or_path": None}))
    assert "names no base_model_name_or_path" in refused(adapter, tmp_path)


def test_a_prefix_is_no_weight(base, tmp_path):
    adapter_of(base, PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"), tmp_path / "adapter")
    assert "peft cannot merge" in refused(tmp_path / "adapter", tmp_path)


def test_a_recipe_is_checked_by_the_model_under_the_adapter(base, tmp_path):
    adapter_of(base, KINDS["lora"], tmp_path / "adapter")
    (tmp_path / "adapter/config.json").write_bytes((base / "config.json").read_bytes())  # axolotl saves it as well
    found = look_at_base("adapter", tmp_path)
    assert (found.name, found.adapter, found.layers) == (str(base), str(tmp_path / "adapter"), 4)
    assert found.weight_bytes == look_at_base(str(base)).weight_bytes > 0
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "../gone"}))
    with pytest.raises(BaseModelError, match="no directory here and no Hugging Face id"):
        look_at_base("adapter", tmp_path)
