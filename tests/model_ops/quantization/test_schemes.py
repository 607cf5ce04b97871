"""Quantization schemes: what the library writes is recognised, other configs are read as it reads them, a new one fits in."""

import json
from dataclasses import replace

import pytest
import torch
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
from safetensors.torch import load_file, save_file
from tiny_models import tiny_model
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from model_ops.decoding.incremental import IncrementalModel
from model_ops.files.tensor_files import read_directory
from model_ops.jobs import ModelError, Progress
from model_ops.models.model_directory import load_model
from model_ops.models.verify_model import verify_weights
from model_ops.operations.quantize import quantize_directory
from model_ops.quantization import SCHEMES, load_quantized, quantization_of, schemes
from model_ops.quantization.quantized_linear import QuantizedLinear, buffer_name
from model_ops.quantization.scheme import Precision, Scheme
from resources.digests.code import files_used

WRITTEN_BY_HAND = {
    "config_groups": {
        "group_0": {
            "format": "int-quantized",
            "input_activations": {
                "actorder": None, "block_structure": None, "dynamic": True, "group_size": None, "num_bits": 8, "observer": None,
                "observer_kwargs": {}, "strategy": "token", "symmetric": True, "type": "int",
            },
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "actorder": None, "block_structure": None, "dynamic": False, "group_size": None, "num_bits": 8,
                "observer": "minmax", "observer_kwargs": {}, "strategy": "channel", "symmetric": True, "type": "int",
            },
        }
    },
    "format": "int-quantized",
    "global_compression_ratio": None,
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
    "sparsity_config": {},
    "transform_config": {},
    "version": "0.20.0",
}  # fmt: skip
"""What compressed-tensors 0.20 writes, with every key."""

LLM_COMPRESSOR = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "ignore": ["lm_head"],
    "quantization_status": "frozen",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
            "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
        }
    },
}
"""As llm-compressor 0.1 wrote it: keys with their default values are left out, the format stands at the top."""


def weight_only(out_features, in_features):
    return {"weight": ("I8", (out_features, in_features)), "weight_scale": ("F32", (out_features, 1))}


class Int8WeightLinear(QuantizedLinear):
    """Weight-only int8: the scheme that a stranger adds."""

    @staticmethod
    def encode(weight):
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        return {"weight": (weight / scale).round().to(torch.int8), "weight_scale": scale}

    @staticmethod
    def decode(stored):
        return stored["weight"].float() * stored["weight_scale"]

    def forward(self, hidden):
        weight = self.decode({"weight": self.weight, "weight_scale": self.weight_scale})
        return F.linear(hidden, weight.to(hidden.dtype), self.bias)


W8A16 = Scheme(
    name="w8a16",
    title="int8 W8A16",
    format="naive-quantized",
    weights=Precision(8, "int", "channel"),
    activations=None,
    stored=weight_only,
    load_layer=lambda: Int8WeightLinear,
)


@pytest.fixture
def source(tmp_path):
    """A tiny model directory with an untied head."""
    tiny_model(layers=2, tied=False).save_pretrained(tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def directory(source, tmp_path):
    """It quantized."""
    quantize_directory(source, tmp_path / "q", Progress())
    return tmp_path / "q"


def ignoring(directory, *layers):
    """The directory's config, changed to leave these layers out."""
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"]["ignore"] = list(layers)
    (directory / "config.json").write_text(json.dumps(config))
    return config


@pytest.mark.parametrize("name", SCHEMES)
def test_a_layer_holds_what_its_scheme_stores_and_decodes_what_it_encodes(name):
    scheme, weight = SCHEMES[name], torch.randn(12, 128, generator=torch.Generator().manual_seed(1))
    kind = scheme.load_layer()
    encoded = kind.encode(weight)
    layer = kind(128, 12, True, torch.float32, scheme.stored(12, 128))
    layer.load_state_dict(
        {**{buffer_name(part): tensor for part, tensor in encoded.items()}, "bias": torch.ones(12)}, strict=True
    )
    assert {part: tensor.dtype for part, tensor in encoded.items()} == {
        part: tensor.dtype for part, tensor in layer.held().items()
    }
    error = {"int": {8: 0.02, 4: 0.14}, "float": {8: 0.04}}[scheme.weights.type][scheme.weights.num_bits]
    assert (kind.decode(encoded) - weight).norm() < error * weight.norm()
    hidden = torch.randn(5, 128, generator=torch.Generator().manual_seed(2))
    wanted = F.linear(hidden, weight, torch.ones(12))
    assert (layer(hidden) - wanted).norm() < 1.5 * error * wanted.norm()


@pytest.mark.parametrize("name", SCHEMES)
def test_layers_over_one_input_become_one(name):
    scheme = SCHEMES[name]
    kind, generator = scheme.load_layer(), torch.Generator().manual_seed(1)
    layers = []
    for outputs in (12, 20):
        layer = kind(128, outputs, True, torch.float32, scheme.stored(outputs, 128))
        layer.hold(kind.encode(torch.randn(outputs, 128, generator=generator)))
        layer.bias = torch.ones(outputs)
        layers.append(layer)
    hidden = torch.randn(5, 128, generator=generator)
    wanted = torch.cat([layer(hidden) for layer in layers], dim=-1)
    torch.testing.assert_close(kind.fused(layers)(hidden), wanted)
    torch.testing.assert_close(torch.cat([layer(hidden) for layer in layers], dim=-1), wanted)


PRESETS = {"w8a8": "W8A8", "w4a16": "W4A16", "fp8": "FP8_DYNAMIC", "fp8_block": "FP8_BLOCK", "w8a16": "W8A16"}


@pytest.mark.parametrize("name", PRESETS)
def test_a_scheme_is_the_library_s_preset(name):
    preset = preset_name_to_scheme(PRESETS[name], ["Linear"]).model_dump(mode="json")
    assert Precision.read(preset["weights"]) == SCHEMES[name].weights
    assert Precision.read(preset["input_activations"]) == SCHEMES[name].activations


@pytest.mark.parametrize("name", SCHEMES)
def test_transformers_reads_what_is_written(name, tmp_path):
    """With a scale for each token, a rounding of activations that falls to the other side changes a product by a step."""
    tiny_model(
        layers=2, tied=False, hidden_size=128, intermediate_size=256, head_dim=32, num_key_value_heads=4, initializer_range=0.1
    ).save_pretrained(tmp_path / "source")
    quantize_directory(tmp_path / "source", tmp_path / "q", Progress(), SCHEMES[name])
    config = json.loads((tmp_path / "q/config.json").read_text())
    assert quantization_of(config).scheme_of("model.layers.0.mlp.up_proj") is SCHEMES[name]
    assert verify_weights(config, read_directory(tmp_path / "q")) == []
    ids, dtype = torch.arange(3, 20)[None], torch.float32
    with torch.no_grad():
        ours = load_quantized(tmp_path / "q", dtype)(ids).logits.float()
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=dtype)(ids).logits.float()
    apart = 0.05 if name in ("w8a8", "fp8") else 1e-4
    torch.testing.assert_close(ours, theirs, rtol=0, atol=apart * float(theirs.abs().max()))


def test_the_library_reads_the_config_of_a_quantized_directory(source, directory):
    config = json.loads((directory / "config.json").read_text())
    found = config["quantization_config"]
    parsed = QuantizationConfig(**found)
    assert parsed.config_groups["group_0"].weights == preset_name_to_scheme("W8A8", ["Linear"]).weights
    assert (found["quant_method"], found["format"], found["ignore"]) == ("compressed-tensors", "int-quantized", ["lm_head"])
    before = json.loads((source / "config.json").read_text())
    assert {name: config[name] for name in before} == before and quantization_of(before) is None
    assert quantization_of(config).scheme_of("model.layers.0.mlp.up_proj").name == "w8a8"


@pytest.mark.parametrize("config", [WRITTEN_BY_HAND, LLM_COMPRESSOR], ids=["before", "llm-compressor"])
def test_configs_of_other_versions_are_read(config, directory):
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        wanted = load_quantized(directory, torch.float32)(ids).logits
        whole = {**json.loads((directory / "config.json").read_text()), "quantization_config": config}
        (directory / "config.json").write_text(json.dumps(whole))
        assert torch.equal(load_quantized(directory, torch.float32)(ids).logits, wanted)
    assert verify_weights(whole, read_directory(directory)) == []


def test_layers_that_a_config_leaves_out_stay_floats(source, directory):
    config = ignoring(directory, "lm_head", r"re:.*layers\.0\.mlp\.down_proj", "model.layers.1.self_attn.q_proj")
    tensors, floats = load_file(directory / "model.safetensors"), load_file(source / "model.safetensors")
    for layer in ("model.layers.0.mlp.down_proj", "model.layers.1.self_attn.q_proj"):
        del tensors[f"{layer}.weight_scale"]
        tensors[f"{layer}.weight"] = floats[f"{layer}.weight"]
    save_file(tensors, directory / "model.safetensors")
    model = load_quantized(directory, torch.float32)
    assert sum(isinstance(module, QuantizedLinear) for module in model.modules()) == 2 * 7 - 2
    assert torch.equal(model.model.layers[0].mlp.down_proj.weight, floats["model.layers.0.mlp.down_proj.weight"])
    assert verify_weights(config, read_directory(directory)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"format": "pack-quantized"},
        {"quant_method": "gptq"},
        {"kv_cache_scheme": {"num_bits": 8, "type": "int"}},
        {"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "attn_head"}},
        {"transform_config": {"config_groups": {"u": {}}}},
        {"sparsity_config": {"format": "sparse-24-bitmask"}},
        {"config_groups": {}},
        {
            "config_groups": {
                "a": WRITTEN_BY_HAND["config_groups"]["group_0"],
                "b": {"targets": ["Linear"], "weights": {"num_bits": 3}},
            }
        },
    ],
)
def test_other_schemes_are_refused_by_name(change):
    config = json.loads(json.dumps(WRITTEN_BY_HAND))
    for group in config["config_groups"].values():
        group.pop("format")
    with pytest.raises(ModelError, match=r"not read here; known in compressed-tensors layout: .*int8 W8A8"):
        quantization_of({"quantization_config": {**config, **change}})


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("weights", {"num_bits": 4}), ("weights", {"symmetric": False}), ("weights", {"strategy": "group", "group_size": 128}),
        ("weights", {"type": "float"}), ("input_activations", {"dynamic": False}),
        ("input_activations", {"strategy": "tensor"}),
    ],
)  # fmt: skip
def test_other_numbers_are_refused(part, change):
    config = json.loads(json.dumps(WRITTEN_BY_HAND))
    config["config_groups"]["group_0"][part] |= change
    with pytest.raises(ModelError, match="not read here"):
        quantization_of({"quantization_config": config})


def test_a_new_scheme_quantizes_loads_decodes_and_is_verified(source, tmp_path, monkeypatch):
    monkeypatch.setitem(schemes.SCHEMES, "w8a16", W8A16)
    quantize_directory(source, tmp_path / "q", Progress(), scheme=W8A16)
    config = json.loads((tmp_path / "q/config.json").read_text())
    assert quantization_of(config).scheme_of("model.layers.0.mlp.up_proj") is W8A16
    assert config["quantization_config"]["config_groups"]["group_0"]["input_activations"] is None
    assert verify_weights(config, read_directory(tmp_path / "q")) == []
    model = load_quantized(tmp_path / "q", torch.float32)
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        wanted, floats = model(ids).logits, tiny_model(layers=2, tied=False)(ids).logits
        runner = IncrementalModel(model)  # fuses the layers over one input
        hidden, _ = runner.forward(ids, runner.new_cache(rows=1))
    torch.testing.assert_close(runner.logits(hidden), wanted, atol=1e-4, rtol=1e-4)
    assert 0 < (wanted - floats).norm() < 0.05 * floats.norm()


@pytest.mark.parametrize("ignore", [["re:["], "lm_head", [None], 5])
def test_layers_left_out_in_no_readable_way_are_one_sentence(ignore):
    with pytest.raises(ModelError, match="ignore"):
        quantization_of({"quantization_config": {**WRITTEN_BY_HAND, "ignore": ignore}})


def test_tensors_of_another_kind_than_the_config_says_are_refused(directory):
    """Whole numbers read as floats would load, and compute nonsense."""
    ignoring(directory, "lm_head", "re:.*down_proj")
    with pytest.raises(ModelError, match=r"down_proj\.weight is torch\.int8, the config asks for torch\.float32"):
        load_quantized(directory, torch.float32)


def test_an_unlisted_head_is_a_fault(directory):
    config = ignoring(directory)
    with pytest.raises(ModelError, match="does not leave out lm_head"):
        load_quantized(directory, torch.float32)
    assert "does not leave out lm_head" in str(verify_weights(config, read_directory(directory))[0])
    assert not W8A16.recognises(config["quantization_config"])
    assert replace(W8A16, format="int-quantized", activations=SCHEMES["w8a8"].activations).recognises(
        config["quantization_config"]
    )


def test_a_float_where_integers_belong_is_refused(directory):
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.up_proj.weight"].bfloat16()
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(
        ModelError, match=r"layers\.1\.mlp\.up_proj\.weight is torch\.bfloat16, the config asks for torch\.int8"
    ):
        load_quantized(directory)


def test_training_refuses_quantized_weights_in_one_sentence(directory):
    with pytest.raises(ModelError, match="is quantized, and float weights are needed here"):
        load_model(directory)


@pytest.mark.parametrize("operation", ["tiny_base", "import_base", "sft", "distill"])
def test_training_does_not_depend_on_the_schemes(operation):
    """A student that samples needs the decoder, which knows the base class of quantized layers, and no scheme."""
    used = files_used(f"model_ops/operations/{operation}.py")
    known = (
        {"model_ops/quantization/__init__.py", "model_ops/quantization/quantized_linear.py"}
        if operation == "distill"
        else set()
    )
    assert used and not [path for path in used if path.startswith("model_ops/quantization/") and path not in known]
