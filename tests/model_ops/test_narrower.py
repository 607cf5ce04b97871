"""Narrower students: what is zero can go without a trace, what matters stays, and plain transformers loads the result."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_models import run_job
from transformers import AutoConfig, AutoModelForCausalLM

from model_ops.documents import Document, held_out_loss, mean_loss
from model_ops.jobs import ModelError, Progress
from model_ops.models import load_model, load_tokenizer, tiny_model
from model_ops.operations import StudentSettings, distill
from model_ops.pruning.narrower import FAMILIES, Importance, Widths, make_narrower, measure_widths, widths_of


@pytest.mark.parametrize(
    ("training", "tokens"),
    [
        ({"steps": 10, "tokens_per_step": 2_048}, 3_034), ({"steps": 1, "tokens_per_step": 512}, 1_024),
        ({"steps": 60, "tokens_per_step": 4_096}, 8_192), ({"epochs": 1}, 8_192),
    ],
)  # fmt: skip
def test_tokens_that_the_importance_of_layers_is_measured_on(monkeypatch, training, tokens):
    read = []
    monkeypatch.setattr(distill, "least_important", lambda teacher, documents, *_, **__: read.extend(documents))
    documents = [Document(f"{row}", np.ones(100, dtype=np.int32), np.ones(100, dtype=bool)) for row in range(200)]
    teacher = SimpleNamespace(config=SimpleNamespace(num_hidden_layers=10))
    settings = StudentSettings(layers=7, choose_layers="importance", **training).resolved()
    distill.searched_layers(teacher, 7, settings, SimpleNamespace(validation=documents, documents=documents), Progress())
    assert abs(sum(len(each) for each in read) - tokens) <= 100


HIDDEN = [kind for kind in FAMILIES if "gemma" not in kind]


def documents(vocabulary=61):
    generator = np.random.default_rng(0)
    return [Document(str(i), generator.integers(3, vocabulary, 24).astype(np.int32), np.ones(24, bool)) for i in range(4)]


def logits(model):
    ids = torch.arange(3, 20)[None]
    return model(input_ids=ids, position_ids=torch.arange(17)[None], use_cache=False, document_lengths=[17]).logits


def silence(model, neurons, groups):
    """Makes these neurons and key-value groups of every layer say nothing."""
    config = model.config

    for layer in model.model.layers:
        if hasattr(layer.mlp, "gate_up_proj"):
            layer.mlp.gate_up_proj.weight.data[[n + config.intermediate_size for n in neurons]] = 0
        else:
            layer.mlp.up_proj.weight.data[neurons] = 0
        attention = layer.self_attn
        if hasattr(attention, "qkv_proj"):
            values = (config.num_attention_heads + config.num_key_value_heads) * config.head_dim
            for group in groups:
                attention.qkv_proj.weight.data[values + group * config.head_dim : values + (group + 1) * config.head_dim] = 0
        else:
            for group in groups:
                rows = slice(group * config.head_dim, (group + 1) * config.head_dim)
                attention.v_proj.weight.data[rows] = 0
                if attention.v_proj.bias is not None:
                    attention.v_proj.bias.data[rows] = 0


@pytest.mark.parametrize("kind", FAMILIES)
@torch.no_grad()
def test_neurons_and_heads_that_say_nothing_can_go(kind, tmp_path):
    model = tiny_model(kind, attention="packed")
    model.config.head_dim = getattr(model.config, "head_dim", None) or 8
    silence(model, [1, 5, 40, *range(20, 33)], [0])
    importance = measure_widths(model, documents())
    widths = widths_of(model.config, 32, 0.5, None)
    assert widths == Widths(mlp=32, heads=2)
    narrow = make_narrower(model, widths, importance)
    torch.testing.assert_close(logits(narrow), logits(model), rtol=1e-4, atol=1e-5)
    assert narrow.config.num_key_value_heads == 1 and narrow.config.intermediate_size == 32
    narrow.save_pretrained(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager", dtype=torch.float32)
    ids = torch.arange(3, 20)[None]
    torch.testing.assert_close(plain(ids).logits, logits(narrow), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", HIDDEN)
@torch.no_grad()
def test_channels_that_are_zero_can_go(kind):
    model = tiny_model(kind, attention="packed")
    model.config.rms_norm_eps = 0.0
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 0.0
    gone = [0, 3, 7, 8, 20, 25, 30, 31]
    for name, parameter in model.named_parameters():
        if name.endswith(("embed_tokens.weight",)):
            parameter.data[:, gone] = 0
        if name.endswith(("o_proj.weight", "down_proj.weight", "o_proj.bias", "down_proj.bias")):
            parameter.data[gone] = 0
    importance = measure_widths(model, documents())
    assert float(importance.hidden[gone].sum()) == 0
    narrow = make_narrower(model, widths_of(model.config, None, None, 24), importance)
    for module in narrow.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 0.0
    assert narrow.config.hidden_size == 24
    torch.testing.assert_close(logits(narrow), logits(model), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_importance_is_what_the_definition_says():
    model = tiny_model("llama", attention="packed")
    rows, seen = documents()[:1], {}
    layer = model.model.layers[1]
    layer.mlp.down_proj.register_forward_pre_hook(lambda _, given: seen.update(mlp=given[0][0]))
    layer.self_attn.o_proj.register_forward_pre_hook(lambda _, given: seen.update(heads=given[0][0]))
    found = measure_widths(model, rows)
    torch.testing.assert_close(found.mlp[1], seen["mlp"].abs().sum(0))
    half = seen["heads"].shape[1] // 2
    torch.testing.assert_close(
        found.groups[1], torch.stack([seen["heads"][:, :half].norm(dim=1).sum(), seen["heads"][:, half:].norm(dim=1).sum()])
    )


def test_importance_loses_less_than_chance(tiny_model, chats, tmp_path):
    from model_ops.documents.conversations import read_documents
    from model_ops.operations import sft

    run_job(
        sft,
        tmp_path / "sft",
        {"model": tiny_model, "dataset": chats},
        steps=25,
        learning_rate=1e-2,
        tokens_per_step=512,
        max_length=128,
    )
    model = load_model(tmp_path / "sft")
    rows, _ = read_documents(chats, "validation", load_tokenizer(tmp_path / "sft"), 128)
    measured = measure_widths(model, read_documents(chats, "train", load_tokenizer(tmp_path / "sft"), 128)[0])
    widths = Widths(mlp=24, hidden=24)

    def loss(importance):
        return mean_loss(held_out_loss(make_narrower(model, widths, importance), rows))

    chance = []
    for seed in range(5):
        torch.manual_seed(seed)
        chance.append(loss(Importance(torch.rand(measured.mlp.shape), measured.groups, torch.rand(32))))
    assert loss(measured) < sum(chance) / 5


def test_a_narrower_student_is_distilled_and_loads_in_plain_transformers(tiny_model, chats, tmp_path):
    run_job(
        distill,
        tmp_path,
        {"teacher": tiny_model, "dataset": chats},
        steps=6,
        learning_rate=1e-2,
        tokens_per_step=512,
        max_length=128,
        layers=2,
        mlp_width=0.7,
        hidden_size=16,
    )
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["num_hidden_layers"], config["intermediate_size"], config["hidden_size"], config["head_dim"]) == (
        2,
        32,
        16,
        16,
    )
    AutoModelForCausalLM.from_pretrained(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["kl"] < lines[0]["kl"]


@pytest.mark.parametrize(
    ("kind", "given", "reason"),
    [
        ("mixtral", (0.5, None, None), "the teacher is a mixtral"),
        ("gemma2", (None, None, 0.5), "does not work with gemma2"),
        ("llama", (None, 3, None), "give a multiple of 2"),
        ("llama", (99_999, None, None), "give at most"),
        ("llama", (None, None, 0.75), "all 32 of the teacher: give a number, such as 24"),
        ("llama", (None, 0.9, None), "in steps of 2 is all 4 of the teacher: give a number, such as 2"),
    ],
)
def test_what_cannot_be_cut_is_refused(kind, given, reason):
    config = AutoConfig.for_model(kind, num_attention_heads=4, num_key_value_heads=2, hidden_size=32, intermediate_size=48)
    with pytest.raises(ModelError, match=reason):
        widths_of(config, *given)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"mlp_width": 0.5, "base": "/models/small"}, "base are both given"),
        ({"heads": 2.5}, "whole number"),
        ({"hidden_size": 0.5, "choose_layers": "even", "mesh": {"dp_shard": 2}}, "in one process"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given, reason):
    with pytest.raises(ValueError, match=reason):
        StudentSettings(**given)
