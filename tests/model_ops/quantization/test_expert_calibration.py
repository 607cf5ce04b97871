"""Mixtures of experts: every expert is calibrated on what it reads, by its router or besides, and servers read the
directory."""

from __future__ import annotations

import json

import pytest
import torch
from mixtures import MIXTURES, mixture
from safetensors import safe_open
from safetensors.torch import load_file
from stop_after import StopAfter
from tiny_chats import conversation, write_rows
from transformers import AutoConfig, AutoModelForCausalLM

from model_ops.calibration import weights as calibrated
from model_ops.calibration.auto_schemes import unit_costs, units_of
from model_ops.calibration.expert_inputs import experts_of, tokens_shown
from model_ops.calibration.walk import calibration_documents, walk
from model_ops.documents.packing import to_batches
from model_ops.files.tensor_files import read_directory
from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.models.model_directory import load_model, save_model
from model_ops.models.tiny_families import tiny_model as tiny_family
from model_ops.models.verify_model import verify_weights
from model_ops.objectives import TeacherCache, mean_divergence, row_divergences
from model_ops.operations import quantize
from model_ops.quantization import SCHEMES, block_layers, fused_layers, load_quantized, quantization_of, unfuse
from tests.thorough_cases import thorough_except

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
        return Job(
            operation="quantize",
            output=output,
            inputs={"model": written(family, **(changes or {})), "dataset": root / "data"},
            settings={"scheme": "w4a16_g32", "calibration_rows": 20, "calibration_length": 64, **settings},
        )

    return job


def batches_of(job):
    documents = calibration_documents(job.inputs["dataset"], job.inputs["model"], 20, 64, 0)
    return to_batches(documents, 4_096)


def blocks_of(job, dtype=torch.bfloat16):
    """The float model's blocks, and its layers. dtype: by default that in which the operation calibrates."""
    model = load_model(job.inputs["model"], dtype=dtype)
    layers = block_layers(model)
    return walk(model, batches_of(job), layers.modules.values()), layers


def dense(layer):
    """The weight that a layer computes with, whatever its form."""
    return (
        layer.weight
        if isinstance(layer, torch.nn.Linear)
        else layer.decode({part: getattr(layer, part) for part in layer.parts})
    )


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
    with unfuse(model, layers.experts) as mixtures:
        torch.testing.assert_close(model(IDS).logits, wanted, rtol=1e-4, atol=1e-4)
        for layer, module in layers.modules.items():
            assert tuple(model.get_submodule(module).weight.shape) == layers.matrices[layer]
        name, first = next(iter(mixtures.items()))
        first.each[1].up.weight.data.zero_()
    fused = model.get_submodule(name)
    width = fused.down_proj.shape[2]
    assert (
        not fused.gate_up_proj[1, width:].any() and fused.gate_up_proj[1, :width].any() and fused.gate_up_proj[0, width:].any()
    )


def test_routers_stay_float_and_all_else_is_quantized():
    for family in MIXTURES:
        layers = block_layers(mixture(family))
        assert not any("gate" in layer.split(".") for layer in layers.matrices), family
        assert layers.experts and not set(layers.floats) & set(layers.matrices)
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
    walked, _ = blocks_of(place("deepseek_v3", tmp_path / "o"), torch.float32)
    block = next(block for block in walked if block.mixtures)
    ((name, experts),) = block.mixtures.items()
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
@pytest.mark.parametrize("family", thorough_except(["deepseek_v3", "mixtral", "qwen2_moe"], sorted(MIXTURES)))
def test_a_mixture_is_calibrated_and_read_as_servers_read_it(place, tmp_path, family):
    given = place(family, tmp_path / "out")
    told = quantize.run(given, Progress())
    source, config = (
        load_file(given.inputs["model"] / "model.safetensors"),
        json.loads((tmp_path / "out/config.json").read_text()),
    )
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
            ours, plain = (
                calibrated.mean_square(kind.decode(each) - weight, read.moment) for each in (parts, kind.encode(weight))
            )
            assert ours < plain, module
    read_alike(tmp_path / "out")


def test_a_stopped_calibration_goes_on_with_the_next_block(place, tmp_path, monkeypatch):
    def made(name):
        return place("qwen3_moe", tmp_path / name, {"num_hidden_layers": 3}, method="awq_gptq")

    quantize.run(made("whole"), Progress())

    with pytest.raises(Stopped):
        quantize.run(made("cut"), StopAfter(2, "calibrate"))
    computed = []
    own = calibrated._of_block
    monkeypatch.setattr(calibrated, "_of_block", lambda block, *given: computed.append(block.index) or own(block, *given))
    quantize.run(made("cut"), Progress())
    assert computed == [2] * 5, "a block and its four experts"
    assert (tmp_path / "cut/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


@torch.no_grad()
@pytest.mark.parametrize(("scheme", "method"), [("w4a16_g32", "awq"), ("w8a8", "smoothquant")])
def test_scales_of_an_expert_s_last_inputs_are_folded_into_its_up_projection(place, tmp_path, scheme, method):
    given = place("qwen3_moe", tmp_path / "out")
    model = load_model(given.inputs["model"])
    for layer in model.model.layers:  # one inner value of each expert is large, and the weights that read it are small
        width = layer.mlp.experts.down_proj.shape[2]
        layer.mlp.experts.gate_up_proj.data[:, width + 3] *= 60
        layer.mlp.experts.down_proj.data[:, :, 3] /= 60
    layers = block_layers(model)
    found = calibrated.calibrated_weights(
        model, layers, dict.fromkeys(layers.matrices, SCHEMES[scheme]), batches_of(given), tmp_path / "blocks", method
    )
    errors = {error.layer: error for error in found.errors}
    for _, up, down in layers.experts["model.layers.0.mlp.experts"]:
        assert errors[down].calibrated < 0.7 * errors[down].rounded
        inputs, outputs = (found.scaled(layer, torch.ones(layers.matrices[layer])) for layer in (down, up))
        assert inputs[0].argmax() == 3
        torch.testing.assert_close(inputs[0] * outputs[:, 0], torch.ones(32))
    with safe_open(tmp_path / "blocks/block-0.safetensors", framework="pt") as block:
        scaled = {name.rpartition(".")[0] for name in block.keys() if name.endswith(calibrated.INPUTS)}  # noqa: SIM118
    assert {layer.rpartition(".")[2] for layer in scaled if "experts" in layer} == {"down_proj"}, "the router reads the others"


@torch.no_grad()
@pytest.mark.parametrize("family", thorough_except(["mixtral"], ["mixtral", "qwen2_moe", "deepseek_v3"]))
def test_all_experts_of_a_module_get_one_scheme_by_what_they_cost(place, tmp_path, family):
    given = place(family, tmp_path / "out", scheme="auto", budget=0.62, candidates=["w4a16_g32", "w8a16_channel", "float"])
    told = quantize.run(given, Progress())
    assert told["bfloat16_share"] <= 0.62 and len(told["units_by_scheme"]) > 1
    layers = block_layers(load_model(given.inputs["model"]))
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert verify_weights(config, read_directory(tmp_path / "out")) == []
    found = quantization_of(config)
    for experts in layers.experts.values():
        assert len({found.scheme_of(layer) for parts in experts for layer in parts}) == 1, "vLLM refuses several"
    for joined in fused_layers(layers.linear):
        assert len({found.scheme_of(layer) for layer in joined}) == 1
    load_quantized(tmp_path / "out", torch.float32)(IDS)


@torch.no_grad()
@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_experts_with_a_scheme_of_their_own_are_read_as_they_were_written(place, tmp_path, family):
    source = place(family, tmp_path / "out").inputs["model"]
    model = load_model(source, attention="sdpa")
    layers = block_layers(model)
    schemes = {layer: SCHEMES["w4a16_g32" if ".experts." in layer else "w8a16_channel"] for layer in layers.matrices}
    quantize.quantize_directory(source, tmp_path / "dense_apart", Progress(), schemes)
    read_alike(tmp_path / "dense_apart")
    config = json.loads((tmp_path / "dense_apart/config.json").read_text())["quantization_config"]
    assert all(
        len([name for name in group["targets"] if "experts." in name]) <= 2 for group in config["config_groups"].values()
    )
    _, second = layers.experts.values()
    by_layer = {layer: SCHEMES["w8a16_channel"] for parts in second for layer in parts}  # those of the first layer stay float
    told = quantize.quantize_directory(source, tmp_path / "by_layer", Progress(), by_layer)
    assert told["tensors_quantized"] == 3 * len(second) and 0.4 < told["float_share"] < 1
    with unfuse(model, layers.experts):
        for layer in by_layer:
            weight, kind = model.get_submodule(layers.modules[layer]).weight, SCHEMES["w8a16_channel"].load_layer()
            weight.data.copy_(kind.decode(kind.encode(weight)))
    torch.testing.assert_close(
        load_quantized(tmp_path / "by_layer", torch.float32)(IDS).logits, model(IDS).logits, rtol=1e-4, atol=1e-3
    )


@torch.no_grad()
def test_what_experts_cost_is_the_divergence_with_only_them_rounded(place, tmp_path):
    given = place("qwen3_moe", tmp_path / "out")
    model, scheme = load_model(given.inputs["model"]), SCHEMES["w8a8"]
    layers = block_layers(model)
    documents = calibration_documents(given.inputs["dataset"], given.inputs["model"], 20, 64, 0)
    cache = TeacherCache.write(tmp_path / "float", model, documents, 128, 1.0, "float32")
    taught = [cache.added_to(document, index) for index, document in enumerate(documents)]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    unit = units_of(layers)[-1]
    ((cost, nothing),) = unit_costs(model, layers, [unit], [scheme, None], taught)
    assert nothing == 0 and all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    quantize.quantize_directory(given.inputs["model"], tmp_path / "q", Progress(), dict.fromkeys(unit, scheme))
    alone = load_quantized(tmp_path / "q", torch.float32, attention="packed")
    assert cost == pytest.approx(mean_divergence(row_divergences(alone, taught)), rel=1e-3) and cost > 0


@pytest.mark.parametrize("family", ["gpt_oss", "granitemoe"])
def test_experts_stored_as_one_weight_stay_and_the_metrics_say_how_much(place, tmp_path, family, tiny_tokenizer):
    made = tiny_family("gpt_oss", vocab_size=300, hidden_size=64) if family == "gpt_oss" else mixture("granitemoe")
    save_model(made.to(torch.bfloat16), tiny_tokenizer, tmp_path / "model")
    given = place("qwen3_moe", tmp_path / "out")
    given.inputs["model"] = tmp_path / "model"
    told = quantize.run(given, Progress())
    source, written = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "out"))
    floats = [name for name in source if name in written]
    assert any(source[name].ndim == 3 and torch.equal(source[name], written[name]) for name in floats)
    values = sum(tensor.numel() for tensor in source.values())
    assert (
        told["float_share"] == pytest.approx(sum(source[name].numel() for name in floats) / values)
        and told["float_share"] > 0.5
    )
    found = quantization_of(json.loads((tmp_path / "out/config.json").read_text()))
    module = next(iter(block_layers(load_model(tmp_path / "model")).float_experts))
    assert not found.covers(f"{module}.0.gate_proj") and found.covers("model.layers.0.self_attn.q_proj")
    load_quantized(tmp_path / "out", torch.float32)(IDS)


def test_experts_that_are_combined_in_another_way_are_refused():
    config = AutoConfig.for_model("deepseek_v4", num_hidden_layers=2)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ModelError, match="combine their projections in a way of their own"):
        block_layers(model)
