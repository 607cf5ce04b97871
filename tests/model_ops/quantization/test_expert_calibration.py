"""Mixtures of experts: every expert is calibrated on what it reads, by its router or besides, and servers read the directory."""

from __future__ import annotations

import json

import pytest
import torch
from mixtures import MIXTURES, mixture
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_chats import conversation, write_rows
from transformers import AutoModelForCausalLM

from model_ops.calibration import calibrated_weights as calibrated
from model_ops.calibration.expert_inputs import experts_of, tokens_shown
from model_ops.calibration.rows import calibration_documents
from model_ops.calibration.walk import walk
from model_ops.job import Job
from model_ops.models.model_directory import load_model, save_model
from model_ops.models.verify_model import verify_weights
from model_ops.operations import quantize
from model_ops.progress import Progress
from model_ops.quantization.block_layers import block_layers
from model_ops.quantization.quantized_model import load_quantized
from model_ops.quantization.registry import SCHEMES
from model_ops.quantization.separate_experts import separated
from model_ops.tensor_files import read_directory
from model_ops.training.packing import to_batches

IDS = torch.arange(5, 40)[None]


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_tokenizer):
    root = tmp_path_factory.mktemp("mixtures")
    for split, rows in (("train", 30), ("validation", 4)):
        write_rows(root / "data", split, [conversation(index) for index in range(rows)])

    def written(family, **changes):
        directory = root / "-".join([family, *map(str, changes.values())])
        if not directory.exists():
            save_model(mixture(family, **changes).to(torch.bfloat16), tiny_tokenizer, directory)
        return directory

    def job(family, output, changes=None, **settings):
        return Job(operation="quantize", output=output,
                   inputs={"model": written(family, **(changes or {})), "dataset": root / "data"},
                   settings={"scheme": "w4a16_g32", "calibration_rows": 20, "calibration_length": 64, **settings})

    return job


def batches_of(job):
    documents = calibration_documents(job.inputs["dataset"], job.inputs["model"], 20, 64, 0)
    return to_batches(documents, 4_096)


def blocks_of(job):
    """The float model's blocks, and its layers."""
    model = load_model(job.inputs["model"])
    layers = block_layers(model)
    return walk(model, batches_of(job), layers.modules.values()), layers


def dense(layer):
    """The weight that a layer computes with, whatever its form."""
    return layer.weight if isinstance(layer, torch.nn.Linear) else layer.decode({part: getattr(layer, part) for part in layer.parts})


@torch.no_grad()
def read_alike(directory):
    """transformers loads the directory as the same model; it keeps fused experts in bfloat16, which is compared apart."""
    ours = load_quantized(directory, torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    for name in block_layers(mixture_like(theirs)).experts:
        each, fused = ours.get_submodule(name).each, theirs.get_submodule(name)
        for part, layers in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
            wanted = torch.stack([torch.cat([dense(getattr(expert, layer)) for layer in layers]) for expert in each])
            torch.testing.assert_close(getattr(fused, part).float(), wanted, rtol=2**-7, atol=1e-6)
            getattr(fused, part).data = wanted
    torch.testing.assert_close(ours(IDS).logits, theirs(IDS).logits, rtol=0, atol=1e-3)
    return ours


def mixture_like(model):
    with torch.device("meta"):
        config = type(model.config).from_dict({**model.config.to_dict(), "quantization_config": None})
        return type(model)(config)


@torch.no_grad()
@pytest.mark.parametrize("family", sorted(MIXTURES))
def test_separate_experts_are_the_fused_ones_and_share_their_weights(family):
    model = mixture(family)
    layers, wanted = block_layers(model), model(IDS).logits
    with separated(model, layers.experts) as mixtures:
        torch.testing.assert_close(model(IDS).logits, wanted, rtol=1e-4, atol=1e-4)
        for layer, module in layers.modules.items():
            assert tuple(model.get_submodule(module).weight.shape) == layers.matrices[layer]
        name, first = next(iter(mixtures.items()))
        first.each[1].up.weight.data.zero_()
    fused = model.get_submodule(name)
    width = fused.down_proj.shape[2]
    assert not fused.gate_up_proj[1, width:].any() and fused.gate_up_proj[1, :width].any() and fused.gate_up_proj[0, width:].any()


def test_routers_stay_float_and_all_else_is_quantized():
    for family in MIXTURES:
        layers = block_layers(mixture(family))
        assert not any("gate" in layer.split(".") for layer in layers.matrices), family
        assert layers.experts and not set(layers.kept) & set(layers.matrices)
        for experts in layers.experts.values():
            assert len(experts) == 4 and all(layer in layers.matrices for parts in experts for layer in parts)


def test_experts_with_few_tokens_are_shown_others_evenly():
    chosen = torch.zeros(100, 2, dtype=torch.long)
    chosen[:, 1] = 1
    chosen[:7, 1] = 2
    assert tokens_shown(chosen, 0, 50).all(), "the router's own tokens, more than are needed"
    assert torch.equal(tokens_shown(chosen, 1, 5), (chosen == 1).any(-1))
    of_two = tokens_shown(chosen, 2, 20)
    assert of_two[:7].all() and of_two.sum() == 20
    assert of_two[7:54].sum() in (6, 7) and of_two[99], "evenly"
    assert tokens_shown(chosen, 3, 20).sum() == 20, "an expert that nobody chooses"
    assert tokens_shown(chosen, 3, 1_000).all()


@torch.no_grad()
def test_inputs_of_experts_are_those_that_the_router_chose(place, tmp_path, monkeypatch):
    from model_ops.calibration import expert_inputs

    monkeypatch.setattr(expert_inputs, "TOKENS_PER_INPUT", 0)
    walked, _ = blocks_of(place("deepseek_v3", tmp_path / "o"))
    block = next(block for block in walked if block.mixtures)
    (name, experts), = block.mixtures.items()
    hidden, chosen = (torch.cat(parts) for parts in zip(*block.routed(name), strict=True))
    for number, expert in enumerate(experts_of(block)):
        rows = hidden[(chosen == number).any(-1)].float()
        gate, up, down = expert.inputs().values()
        assert gate is up
        torch.testing.assert_close(gate.moment, rows.T @ rows / len(rows), rtol=1e-4, atol=1e-5)
        made = torch.nn.functional.silu(rows @ experts.each[number].gate.weight.T) * (rows @ experts.each[number].up.weight.T)
        torch.testing.assert_close(down.moment, made.T @ made / len(made), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(down.largest, made.abs().amax(0), rtol=1e-3, atol=1e-4)
        assert len(down.sample) <= len(rows)


@torch.no_grad()
@pytest.mark.parametrize("family", sorted(MIXTURES))
def test_a_mixture_is_calibrated_and_read_as_servers_read_it(place, tmp_path, family):
    given = place(family, tmp_path / "out")
    told = quantize.run(given, Progress())
    source, config = load_file(given.inputs["model"] / "model.safetensors"), json.loads((tmp_path / "out/config.json").read_text())
    assert verify_weights(config, read_directory(tmp_path / "out")) == []
    walked, layers = blocks_of(given)
    assert told["tensors_quantized"] == len(layers.matrices) and told["output_error"] < 0.8 * told["output_error_rounded"]
    written = load_file(tmp_path / "out/model.safetensors")
    for name, tensor in source.items():
        if name.removesuffix(".weight") not in layers.matrices:
            assert torch.equal(written[name], tensor), f"{name} is not quantized and stays as it is"
    with safe_open(tmp_path / "out/.work/blocks/block-1.safetensors", framework="pt") as block:
        names = set(block.keys())
    for module, experts in layers.experts.items():
        if module.startswith("model.layers.1."):
            assert {f"{layer}.weight_packed" for parts in experts for layer in parts} <= names
    first = next(block for block in walked if block.mixtures)
    of_module = {module: layer for layer, module in layers.modules.items()}
    kind = SCHEMES["w4a16_g32"].load_layer()
    for expert in experts_of(first):
        if first.index:
            continue  # what it reads depends on the codes of earlier blocks
        for module, read in expert.inputs().items():
            weight = expert.layers[module].weight.float()
            parts = {part: written[f"{of_module[module]}.{part}"] for part in kind.encode(weight)}
            ours, plain = (calibrated._error(kind.decode(each), weight, read.moment) for each in (parts, kind.encode(weight)))
            assert ours < plain, module
    read_alike(tmp_path / "out")
