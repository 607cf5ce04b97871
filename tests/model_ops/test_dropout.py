"""Dropout of a base's config is off where a model is compared with its reference or its sampler, and on again after that."""

import json
import re

import numpy as np
import pytest
import torch
from preference_rows import pair, write_preferences
from test_rft import Told, run, write_prompts
from tiny_models import write_target
from transformers import AutoConfig, AutoModelForCausalLM

from model_ops.adapters import LoraSettings, add_adapters
from model_ops.evaluation.task_scores import AccuracyRatios
from model_ops.families import FAMILIES
from model_ops.jobs import Job, Progress
from model_ops.models import read_config, tiny_model
from model_ops.models.tiny_families import COMMON
from model_ops.operations import preference, reward_model
from model_ops.training import without_dropout


def scores(values):
    return {f"item-{n}": float(value) for n, value in enumerate(values)}


def test_ratio_and_interval_of_a_suite():
    generator = np.random.default_rng(5)
    reference = (generator.random(300) < 0.6).astype(float)
    own = np.where(generator.random(300) < 0.05, 1 - reference, reference)
    found = AccuracyRatios({"s": (scores(own), scores(reference))}).of("s")
    assert found.value == pytest.approx(own.sum() / reference.sum()) and found.items == 300
    # delta method: var(R) = mean((own - R reference)^2) / (n mean(reference)^2)
    spread = np.sqrt(np.mean((own - found.value * reference) ** 2) / 300) / reference.mean()
    assert found.low == pytest.approx(found.value - 1.96 * spread, abs=0.006)
    assert found.high == pytest.approx(found.value + 1.96 * spread, abs=0.006)


def test_the_average_gives_each_suite_the_same_weight():
    half, whole = scores([1, 0] * 20), scores([1, 1] * 20)
    many = scores([1] * 400)
    kept = AccuracyRatios({"a": (half, whole), "b": (many, many)})
    assert kept.of("a").value == 0.5 and kept.of("b").value == 1.0 and kept.average().value == pytest.approx(0.75)
    assert kept.average().low < 0.75 < kept.average().high < 0.9 and kept.average().items == 440


def test_equal_answers_still_have_an_interval():
    same = scores([1, 0, 1, 0, 1, 1])
    found = AccuracyRatios({"s": (same, same)})
    assert (found.of("s").low, found.of("s").high) == (0.5, 1.5) and found.average() == found.of("s")


def test_only_items_that_both_answered_count():
    found = AccuracyRatios({"s": (scores([1, 1, 0]), {"item-0": 1.0, "item-1": 1.0, "other": 1.0})}).of("s")
    assert found.value == 1.0 and found.items == 2


def test_no_ratio_without_a_right_answer():
    none = AccuracyRatios({"s": (scores([1, 0]), scores([0, 0]))})
    assert none.of("s") is None and none.average() is None
    single = AccuracyRatios({"s": (scores([1]), scores([1]))})
    assert single.of("s").low is None and single.average().value == 1.0


SMALL = {**COMMON, "hidden_size": 32, "intermediate_size": 48, "num_local_experts": 4, "num_experts_per_tok": 2}
OTHERS = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 61, **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.5)},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "vocab_size": 61, "attn_pdrop": 0.5, "resid_pdrop": 0.5},
    "gpt_neo": {**SMALL, "num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]], "attention_dropout": 0.5, "embed_dropout": 0.5},
    "falcon": {**SMALL, "hidden_dropout": 0.5, "attention_dropout": 0.5},
    "opt": {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.5, "layerdrop": 0.5},
    "starcoder2": {**SMALL, "residual_dropout": 0.5, "embedding_dropout": 0.5},
    "mixtral": {**SMALL, "router_jitter_noise": 0.5},
}  # fmt: skip
"""Families of the rates that few have, of layers and of configs that are read in each forward pass."""


def logits(model):
    return model(input_ids=torch.arange(3, 23)[None], use_cache=False).logits


@torch.no_grad()
def refuses_to_draw(model, rates):
    plain, config = logits(model.eval()), model.config.to_dict()
    torch.manual_seed(0)
    assert not logits(model.train()).equal(plain), "the rates change what training mode computes"
    told = Told()
    with without_dropout(model, told, "rft"):
        assert model.training
        torch.testing.assert_close(logits(model), plain, rtol=0, atol=0)
    assert model.config.to_dict() == config, "what is saved is the base's config"
    assert not logits(model).equal(plain), "dropout is on again"
    assert told.said[0].startswith("rft: trains without dropout (") and all(rate in told.said[0] for rate in rates)
    with without_dropout(model.eval(), told, "rft"):
        torch.testing.assert_close(logits(model), plain, rtol=0, atol=0)


@pytest.mark.parametrize("name", OTHERS)
def test_no_rate_of_a_config_is_left(name):
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **OTHERS[name])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    refuses_to_draw(model, [f"{key} 0.5" for key, value in OTHERS[name].items() if value == 0.5])


RATES = {name: [key for key in vars(AutoConfig.for_model(name)) if re.search("drop|jitter", key)] for name in FAMILIES}


@pytest.mark.parametrize(("name", "rates"), [each for each in RATES.items() if each[1]])
def test_no_family_of_the_table_drops_anything(name, rates):
    model = tiny_model(name, attention="sdpa" if name not in ("gemma2", "gpt_oss") else "eager", **dict.fromkeys(rates, 0.5))
    refuses_to_draw(model, rates)


def test_dropout_of_an_adapter_is_off_too():
    model = tiny_model("qwen3_moe", attention="sdpa")
    add_adapters(model, LoraSettings(rank=4, dropout=0.5, targets=["q_proj", "experts"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.3)
    refuses_to_draw(model, ["dropout 0.5"])


def test_rates_are_on_again_after_an_error():
    model = tiny_model("qwen3", attention_dropout=0.5)
    with pytest.raises(KeyError), without_dropout(model, Progress(), "rft"):
        raise KeyError
    assert model.model.layers[0].self_attn.attention_dropout == model.config.attention_dropout == 0.5


DROPS = {"model_type": "phi3", "attention_dropout": 0.5, "resid_pdrop": 0.5, "layers": 2, "vocab_size": 300}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dropout")
    write_target(folder / "model", **DROPS)
    write_prompts(folder / "prompts")
    write_preferences(folder / "pairs", [pair(i) for i in range(12)], [], "train")
    return folder


def first_step(output):
    return json.loads((output / "metrics.jsonl").read_text().splitlines()[0])


@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_first_step_of_a_base_with_dropout_is_that_of_its_reference_and_its_sampler(start, tmp_path, method):
    adapter = {"method": method, **({"lora": {"rank": 4, "dropout": 0.5}} if method == "lora" else {})}
    adapter["activation_checkpointing"] = "full" if method == "full" else "none"
    settings = {"steps": 2, "tokens_per_step": 600, "max_length": 160, "learning_rate": 1e-3, "precision": "float32", **adapter}
    inputs = {"model": start / "model", "dataset": start / "pairs"}
    preference.run(Job(operation="preference", output=tmp_path / "pairs", inputs=inputs, settings=settings), Progress())
    first = first_step(tmp_path / "pairs")
    assert first["margin"] == first["reward_chosen"] == first["kl"] == 0 and first["accuracy"] == 0.5
    run(start, tmp_path / "rft", steps=1, held_out_prompts=0, kl=0.1, **adapter)
    first = first_step(tmp_path / "rft")
    assert first["equal_groups"] < 1 and first["gap"] < 1e-4 and first["kl"] < 1e-8 and first["outside"] == 0
    for output in ("pairs", "rft"):
        config = read_config(tmp_path / output)
        assert (config["attention_dropout"], config["resid_pdrop"]) == (0.5, 0.5), "the base's config"


def test_a_reward_model_is_trained_without_it_too(start, tmp_path):
    write_target(start / "still", **{**DROPS, "attention_dropout": 0.0, "resid_pdrop": 0.0})
    settings = {"steps": 2, "tokens_per_step": 600, "max_length": 160, "learning_rate": 1e-3, "precision": "float32"}
    losses = []
    for base in ("model", "still"):
        inputs = {"model": start / base, "dataset": start / "pairs"}
        reward_model.run(Job(operation="reward_model", output=tmp_path / base, inputs=inputs, settings=settings), Progress())
        losses.append(first_step(tmp_path / base)["loss"])
    assert losses[0] == losses[1]
