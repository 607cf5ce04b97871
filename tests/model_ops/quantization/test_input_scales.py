"""AWQ and SmoothQuant: inputs that can be scaled, by every family's own forward pass, and what scaling saves with outliers."""

import json

import numpy as np
import pytest
import torch
from test_gptq import place, run  # noqa: F401
from tiny_models import write_target
from transformers import AutoModelForCausalLM

from model_ops.calibration.layer_inputs import Inputs
from model_ops.calibration.scalable_inputs import ScalableInputs, awq_scales, scalable_inputs, smooth_scales
from model_ops.calibration.walk import walk
from model_ops.documents import Document, to_batches
from model_ops.families.table import FAMILIES, PACKED
from model_ops.files.tensor_files import read_directory
from model_ops.models.model_directory import load_model
from model_ops.models.tiny_families import tiny_model as tiny_family
from model_ops.operations.quantize_settings import QuantizeSettings
from model_ops.quantization import block_layers, load_quantized

EXPECTED = {
    "llama": [
        ("q_proj k_proj v_proj", "input_layernorm"), ("o_proj", "v_proj"), ("gate_proj up_proj", "post_attention_layernorm"),
        ("down_proj", "up_proj"),
    ],
    "gemma3_text": [
        ("q_proj k_proj v_proj", "input_layernorm"), ("o_proj", "v_proj"), ("gate_proj up_proj", "pre_feedforward_layernorm"),
        ("down_proj", "up_proj"),
    ],
    "mixtral": [("q_proj k_proj v_proj", "input_layernorm"), ("o_proj", "v_proj")],  # its router reads what the experts read
}  # fmt: skip


@torch.no_grad()
def first_block(family):
    """The first block of a tiny model whose norms and biases are no ones and zeros."""
    model = tiny_family(family, attention="packed")
    torch.manual_seed(0)
    for tensor in model.parameters():
        if tensor.ndim == 1:
            tensor.add_(torch.rand_like(tensor) * 0.3)
    rows = to_batches(
        [Document(f"r{i}", np.random.default_rng(i).integers(3, 60, 33), np.ones(33, bool)) for i in range(3)],
        64 if family in PACKED else 1,
    )
    return model, next(iter(walk(model, rows, block_layers(model).linear.values())))


@torch.no_grad()
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_folding_scales_changes_nothing_that_a_block_computes(family):
    _, block = first_block(family)
    before = [block.output(each) for each in block.runs]
    weights = {block.inner(name): layer.weight.float() for name, layer in block.layers.items()}
    groups = scalable_inputs(block)
    for each, output in zip(block.runs, before, strict=True):
        assert torch.equal(block.output(each), output)  # trials leave no trace
    for group in groups:
        channels = group.gathered(torch.zeros(block.module.get_submodule(group.readers[0]).in_features)).shape[0]
        spread = group.fold(block, weights, torch.exp(torch.randn(channels)))
        assert spread.shape == (block.module.get_submodule(group.readers[0]).in_features,)
    for name in block.layers:
        block.replace(name, weights[block.inner(name)])
    for each, output in zip(block.runs, before, strict=True):
        added = (output - each.hidden).norm()
        assert (block.output(each) - output).norm() < 1e-3 * added
    if family in EXPECTED:
        found = [
            (" ".join(name.rpartition(".")[2] for name in group.readers), group.source.rpartition(".")[2]) for group in groups
        ]
        assert found == EXPECTED[family]


def one_norm(channels):
    return ScalableInputs(("reader",), "norm", "weight")


def inputs_with_an_outlier(width=64, rows=300, channel=5, factor=50.0):
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(1))
    x[:, channel] *= factor
    return x, Inputs(x.T @ x / len(x), x.abs().amax(0), x)


def test_awq_takes_the_scales_of_least_error_and_they_are_those_of_its_definition():
    x, found = inputs_with_an_outlier()
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    scales = awq_scales(one_norm(64), weight, found, 32)
    assert scales.argmax() == 5 and scales[5] > 3 * scales.median()

    def error(given):
        scaled = weight * given
        steps = scaled.view(32, 2, 32).abs().amax(-1, keepdim=True) / 7
        decoded = ((scaled.view(32, 2, 32) / steps).round().clamp(-8, 7) * steps).view(32, 64) / given
        return float(((decoded - weight) @ x.T).square().sum())

    sizes = (x * x).mean(0).sqrt()
    shares = (weight.view(32, 2, 32).abs() / weight.view(32, 2, 32).abs().amax(-1, keepdim=True)).reshape(32, 64).mean(0)
    errors = {power: error(sizes**power / shares ** (1 - power)) for power in np.linspace(0, 1, 21)}
    assert error(scales) < 0.2 * error(torch.ones(64))
    assert error(scales) < 1.02 * min(errors.values())  # scales of groups are stored in bfloat16


def test_smoothquant_moves_an_outlier_of_activations_into_the_weights():
    x, found = inputs_with_an_outlier(factor=200.0)
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    scales = smooth_scales(one_norm(64), weight, found)

    def error(given):
        rows, columns = x / given, weight * given
        steps, of_rows = columns.abs().amax(1, keepdim=True) / 127, rows.abs().amax(1, keepdim=True) / 127
        outputs = ((rows / of_rows).round() @ (columns / steps).round().T) * of_rows * steps.T
        return float((outputs - x @ weight.T).square().sum())

    assert scales.argmax() == 5 and error(scales) < 0.1 * error(torch.ones(64))


def test_no_scales_are_taken_where_they_gain_nothing():
    x, weight = torch.randn(300, 64, generator=torch.Generator().manual_seed(1)), torch.ones(32, 64)
    even = Inputs(torch.eye(64), torch.ones(64), x.sign())
    assert awq_scales(one_norm(64), weight, even, 32) is None and smooth_scales(one_norm(64), weight, even) is None


OUTLIERS = 48.0


@pytest.fixture(scope="module")
def with_outliers(tmp_path_factory):
    """A model some of whose norms write large values that the next layers' small weights undo: what large models grow by
    themselves (arXiv 2208.07339)."""
    directory = tmp_path_factory.mktemp("outliers") / "model"
    write_target(directory, layers=3, vocab_size=300, hidden_size=64, head_dim=16, intermediate_size=64)
    model = load_model(directory, dtype=torch.float32)
    with torch.no_grad():
        for layer in model.model.layers:
            reads, mlp = layer.self_attn, layer.mlp
            for norm, readers in (
                (layer.input_layernorm, (reads.q_proj, reads.k_proj, reads.v_proj)),
                (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
            ):
                norm.weight[:3] *= OUTLIERS
                for reader in readers:
                    reader.weight[:, :3] /= OUTLIERS
    model.to(torch.bfloat16).save_pretrained(directory)
    return directory


@torch.no_grad()
def divergence(float_directory, quantized):
    """Mean KL of the float model's distributions against the quantized one's, nats."""
    ids = torch.arange(5, 205)[None]
    wanted = load_model(float_directory, dtype=torch.float32)(ids).logits.log_softmax(-1)
    found = load_quantized(quantized, torch.float32)(ids).logits.log_softmax(-1)
    return float((wanted.exp() * (wanted - found)).sum(-1).mean())


def test_scaling_saves_what_outliers_cost(with_outliers, place, tmp_path):  # noqa: F811
    cost = {}
    for scheme, methods in {"w4a16_g32": ("rtn", "awq", "gptq", "awq_gptq"), "w8a8": ("rtn", "smoothquant")}.items():
        for method in methods:
            told = run(place, tmp_path / scheme / method, with_outliers, scheme=scheme, method=method)
            cost[scheme, method] = divergence(with_outliers, tmp_path / scheme / method)
            if method != "rtn":
                assert told["output_error"] < told["output_error_rounded"]
    assert cost["w4a16_g32", "awq"] < 0.7 * cost["w4a16_g32", "rtn"]
    assert cost["w4a16_g32", "awq_gptq"] < cost["w4a16_g32", "gptq"]
    assert cost["w8a8", "smoothquant"] < 0.5 * cost["w8a8", "rtn"]
    scaled = tmp_path / "w4a16_g32/awq_gptq"
    norm = "model.layers.1.input_layernorm.weight"
    one, other = (read_directory(directory)[norm] for directory in (with_outliers, scaled))
    assert (one.dtype, one.shape) == (other.dtype, other.shape) and one.read() != other.read()
    ids = torch.arange(5, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(
            load_quantized(scaled, torch.float32)(ids).logits,
            AutoModelForCausalLM.from_pretrained(scaled, dtype=torch.float32)(ids).logits,
            rtol=0,
            atol=1e-4,
        )
    config = json.loads((scaled / "config.json").read_text())
    assert config["quantization_config"]["format"] == "pack-quantized"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scheme": "w8a8", "method": "awq"}, "method is awq, but scheme w8a8 rounds to nearest"),
        ({"scheme": "w4a16", "method": "smoothquant"}, "smoothquant, which is for int8 activations, and scheme is w4a16"),
        ({"scheme": "w4a16", "method": "awq", "distil": {"enabled": True}}, "method awq rounds in another way"),
    ],
)
def test_a_method_that_does_not_fit_is_refused_with_the_remedy(settings, said):
    with pytest.raises(ValueError, match=said):
        QuantizeSettings(**settings)
