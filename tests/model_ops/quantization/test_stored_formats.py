"""Formats of compressed-tensors: our encoding against the library's own scales and compressor, bit for bit; odd shapes."""

import itertools
import json

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import calculate_qparams, compute_dynamic_scales_and_zp, generate_gparam
from safetensors.torch import load_file
from test_gptq import job, place  # noqa: F401
from tiny_models import tiny_model, write_target
from transformers import AutoModelForCausalLM

from model_ops.calibration.rows import calibration_documents
from model_ops.files.tensor_files import read_directory
from model_ops.jobs.errors import ModelError
from model_ops.jobs.progress import Progress
from model_ops.models.model_directory import load_model
from model_ops.models.verify_model import verify_weights
from model_ops.operations import quantize
from model_ops.operations.quantize import quantize_directory
from model_ops.quantization.fp4_codes import VALUES, pack_fp4, round_fp4, unpack_fp4, values_fp4
from model_ops.quantization.fp8_block_linear import Fp8BlockLinear
from model_ops.quantization.int8_packed_linear import ChannelInt8Linear, PackedInt8Linear, pack_int8, unpack_int8
from model_ops.quantization.model_layers import fused_layers
from model_ops.quantization.mxfp4_linear import Mxfp4WeightLinear, round_mxfp4
from model_ops.quantization.nvfp4_linear import Nvfp4Linear, Nvfp4WeightLinear
from model_ops.quantization.quantized_model import load_quantized
from model_ops.quantization.registry import SCHEMES


def weight(rows=24, columns=256, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) * torch.rand(rows, 1, generator=generator) * 0.3


def compressed(name, given, scale, preset=None, **more):
    """The library's stored tensors of a weight, for scales of ours."""
    scheme = preset_name_to_scheme(preset, ["Linear"])
    found = BaseCompressor.get_value_from_registry(SCHEMES[name].format).compress(
        {"weight": given, "weight_scale": scale, **more}, scheme
    )
    return scheme, found


def decompressed(name, scheme, stored):
    return BaseCompressor.get_value_from_registry(SCHEMES[name].format).decompress(stored, scheme)["weight"]


@pytest.mark.parametrize("columns", [128, 130, 4, 1])
def test_int8_codes_are_packed_as_the_library_packs_them(columns):
    from compressed_tensors.compressors import pack_to_int32

    codes = torch.randint(-128, 128, (5, columns), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    packed, theirs = pack_int8(codes), pack_to_int32(codes, 8)
    assert torch.equal(unpack_int8(packed, columns), codes)
    # what fills the last word is ours to choose
    assert torch.equal(packed if columns % 4 == 0 else unpack_int8(theirs, columns), theirs if columns % 4 == 0 else codes)


@pytest.mark.parametrize(("name", "layer"), [("w8a16", PackedInt8Linear), ("w8a16_channel", ChannelInt8Linear)])
def test_packed_int8_is_what_the_library_writes(name, layer):
    given = weight()
    ours = layer.encode(given)
    scheme, theirs = compressed(name, given, ours["weight_scale"].float(), preset="W8A16")
    if name == "w8a16_channel":
        scheme = scheme.model_copy(update={"weights": QuantizationArgs(num_bits=8, strategy="channel")})
        theirs = BaseCompressor.get_value_from_registry("pack-quantized").compress(
            {"weight": given, "weight_scale": ours["weight_scale"].float()}, scheme
        )
    assert torch.equal(ours["weight_packed"], theirs["weight_packed"])
    assert torch.equal(ours["weight_shape"], theirs["weight_shape"])
    assert torch.equal(decompressed(name, scheme, theirs), layer.decode(ours))
    step = ours["weight_scale"].float().repeat_interleave(256 // ours["weight_scale"].shape[1], 1)
    assert ((layer.decode(ours) - given).abs() <= step * 0.76).all()  # half a step, and at the edge a rounded scale


@pytest.mark.parametrize(("rows", "columns"), [(256, 384), (200, 128), (12, 256)])
def test_fp8_blocks_are_what_the_library_writes(rows, columns):
    given = weight(rows, columns)
    ours = Fp8BlockLinear.encode(given)
    largest = torch.stack([torch.stack([part.abs().max() for part in row.split(128, 1)]) for row in given.split(128)])
    assert torch.equal(ours["weight_scale"], largest / 448)
    scheme, theirs = compressed("fp8_block", given, ours["weight_scale"], preset="FP8_BLOCK")
    assert torch.equal(ours["weight"].view(torch.uint8), theirs["weight"].view(torch.uint8))
    assert torch.equal(decompressed("fp8_block", scheme, theirs), Fp8BlockLinear.decode(ours))


def test_activations_of_fp8_blocks_are_rounded_in_groups():
    layer = Fp8BlockLinear(256, 20, True, torch.float32, SCHEMES["fp8_block"].stored(20, 256))
    layer.load_state_dict({**Fp8BlockLinear.encode(weight(20)), "bias": torch.ones(20)})
    hidden = torch.randn(3, 5, 256, generator=torch.Generator().manual_seed(4))
    hidden[..., 200] = 50  # coarsens its own group only
    wanted = torch.empty_like(hidden)
    for part in (slice(0, 128), slice(128, 256)):
        scale = hidden[..., part].abs().amax(-1, keepdim=True) / 448
        wanted[..., part] = (hidden[..., part] / scale).to(torch.float8_e4m3fn).float() * scale
    torch.testing.assert_close(layer(hidden), wanted @ Fp8BlockLinear.decode(layer.state_dict()).T + 1)


def test_floats_of_four_bits_round_to_the_nearest_and_ties_to_even():
    values = torch.tensor(VALUES)
    middle = (values[1:] + values[:-1]) / 2
    even = [0, 2, 2, 4, 4, 6, 6]  # codes whose mantissa bit is 0
    assert round_fp4(middle).tolist() == even and round_fp4(-middle[1:]).tolist() == [code + 8 for code in even[1:]]
    given = torch.linspace(-7, 7, 2_001)
    signed = torch.cat([values, -values])
    nearest = (given[:, None] - signed).abs().min(1).values
    torch.testing.assert_close((values_fp4(round_fp4(given)) - given).abs(), nearest)
    codes = torch.randint(0, 16, (4, 10), dtype=torch.uint8)
    assert torch.equal(unpack_fp4(pack_fp4(codes)), codes)


def test_mxfp4_is_what_the_library_writes():
    given = weight()
    given[3, :32] = torch.linspace(-1.76, 1.74, 32)  # a mantissa that counts for the next power of two
    scheme = preset_name_to_scheme("MXFP4A16", ["Linear"])
    groups = given.unflatten(-1, (-1, 32))
    scales, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), scheme.weights)
    ours = Mxfp4WeightLinear.encode(given)
    _, theirs = compressed("mxfp4a16", given, scales, preset="MXFP4A16")
    assert torch.equal(ours["weight_packed"], theirs["weight_packed"])
    assert torch.equal(ours["weight_scale"], theirs["weight_scale"])
    assert torch.equal(decompressed("mxfp4a16", scheme, theirs).float(), Mxfp4WeightLinear.decode(ours))


def test_activations_of_mxfp4_are_rounded_as_the_library_rounds_them():
    args = preset_name_to_scheme("MXFP4", ["Linear"]).input_activations
    hidden = torch.randn(2, 7, 96, generator=torch.Generator().manual_seed(5)) * 30
    scale, zero = compute_dynamic_scales_and_zp(hidden, args, None)
    assert torch.equal(round_mxfp4(hidden), fake_quantize(hidden, scale, zero, args))


def test_zeros_and_extreme_groups_stay_finite():
    given = torch.zeros(4, 64)
    given[1], given[2, :5], given[3] = 1e-30, 3e30, -1e-4
    for layer in (Mxfp4WeightLinear, Nvfp4WeightLinear, ChannelInt8Linear):
        decoded = layer.decode(layer.encode(given))
        assert torch.isfinite(decoded).all() and not decoded[0].any()


def test_nvfp4_is_what_the_library_writes():
    given = weight()
    scheme = preset_name_to_scheme("NVFP4A16", ["Linear"])
    largest = generate_gparam(given.amin(), given.amax())
    groups = given.unflatten(-1, (-1, 16))
    scales, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), scheme.weights, global_scale=largest)
    ours = Nvfp4WeightLinear.encode(given)
    _, theirs = compressed("nvfp4a16", given, scales, preset="NVFP4A16", weight_global_scale=largest)
    assert torch.equal(ours["weight_global_scale"], theirs["weight_global_scale"])
    assert torch.equal(ours["weight_packed"], theirs["weight_packed"])
    assert torch.equal(ours["weight_scale"].view(torch.uint8), theirs["weight_scale"].view(torch.uint8))
    torch.testing.assert_close(
        decompressed("nvfp4a16", scheme, theirs).float(), Nvfp4WeightLinear.decode(ours), rtol=2**-7, atol=0
    )


def test_layers_that_servers_join_share_the_global_scale(tmp_path):
    """vLLM multiplies the joined matrix by the largest of the global scales, whatever the others are."""
    model = tiny_model(layers=2, tied=False, hidden_size=64, intermediate_size=64)
    model.model.layers[0].self_attn.k_proj.weight.data *= 9
    model.model.layers[0].mlp.up_proj.weight.data *= 5
    model.save_pretrained(tmp_path / "m")
    quantize_directory(tmp_path / "m", tmp_path / "q", Progress(), SCHEMES["nvfp4a16"])
    stored = load_file(tmp_path / "q/model.safetensors")

    def scale(layer):
        return stored[f"model.layers.0.{layer}.weight_global_scale"].item()

    for joined in (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")):
        largest = max(model.get_submodule(f"model.layers.0.{layer}").weight.abs().max().item() for layer in joined)
        assert {scale(layer) for layer in joined} == {torch.tensor(448 * 6 / largest).item()}
    own = model.model.layers[0].self_attn.o_proj.weight.abs().max().item()
    assert scale("self_attn.o_proj") == torch.tensor(448 * 6 / own).item()
    with torch.no_grad():
        ids = torch.arange(3, 20)[None]
        found, wanted = load_quantized(tmp_path / "q", torch.float32)(ids).logits, model(ids).logits
    assert (found - wanted).norm() < 0.4 * wanted.norm()


def test_layers_are_grouped_as_servers_join_them():
    names = [
        f"model.layers.0.{name}"
        for name in (
            "mlp.up_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "self_attn.q_proj",
            "mlp.gate_proj",
            "self_attn.k_proj",
            "mlp.experts.1.w3",
            "mlp.experts.1.w1",
        )
    ]
    groups = fused_layers(names)
    assert sorted(itertools.chain(*groups)) == sorted(names)
    assert [[name.rpartition(".")[2] for name in group] for group in groups] == [
        ["gate_proj", "up_proj"],
        ["q_proj", "k_proj", "v_proj"],
        ["o_proj"],
        ["w1", "w3"],
    ]
    assert len(fused_layers(["a.0.q_proj", "a.1.q_proj"])) == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("w8a16", "a layer has 96 inputs, no multiple of the 128 that share a scale: choose scheme w8a16_channel"),
        ("fp8_block", "a layer has 96 inputs, no multiple of the 128 that share a scale: choose scheme fp8"),
    ],
)
def test_inputs_that_do_not_divide_are_refused_before_anything_is_written(name, said, tmp_path):
    tiny_model(layers=2, hidden_size=96, intermediate_size=96, head_dim=24).save_pretrained(tmp_path / "m")
    with pytest.raises(ModelError, match=said):
        quantize_directory(tmp_path / "m", tmp_path / "q", Progress(), SCHEMES[name])
    assert not (tmp_path / "q").exists()


def test_blocks_that_would_cross_joined_layers_are_refused(tmp_path):
    tiny_model(layers=2, hidden_size=128, intermediate_size=256, head_dim=32).save_pretrained(tmp_path / "m")  # k: 64 outputs
    with pytest.raises(
        ModelError, match=r"k_proj has 64 outputs, no multiple of the 128 .* join it with .*v_proj: choose scheme fp8"
    ):
        quantize_directory(tmp_path / "m", tmp_path / "q", Progress(), SCHEMES["fp8_block"])


@pytest.mark.parametrize(("name", "damage"), [("mxfp4", 255), ("nvfp4a16", 0)])
def test_damaged_scales_are_a_fault(name, damage, tmp_path):
    from safetensors.torch import save_file

    tiny_model(layers=2, tied=False, hidden_size=64, intermediate_size=64).save_pretrained(tmp_path / "m")
    quantize_directory(tmp_path / "m", tmp_path / "q", Progress(), SCHEMES[name])
    config = json.loads((tmp_path / "q/config.json").read_text())
    assert verify_weights(config, read_directory(tmp_path / "q")) == []
    stored = load_file(tmp_path / "q/model.safetensors")
    stored["model.layers.1.mlp.up_proj.weight_scale"].view(torch.uint8)[2, 1] = damage
    save_file(stored, tmp_path / "q/model.safetensors")
    assert "layers.1.mlp.up_proj.weight_scale" in str(verify_weights(config, read_directory(tmp_path / "q"))[0])


def test_activations_of_nvfp4_are_rounded_as_the_library_rounds_them():
    args = preset_name_to_scheme("NVFP4", ["Linear"]).input_activations
    hidden = torch.randn(2, 7, 96, generator=torch.Generator().manual_seed(5)) * 3
    layer = Nvfp4Linear(96, 8, False, torch.float32, SCHEMES["nvfp4"].stored(8, 96))
    layer.input_global_scale = Nvfp4Linear.input_scale_of(8.0)
    assert torch.equal(layer.input_global_scale, generate_gparam(torch.tensor(-8.0), torch.tensor(7.0)))
    scale, zero = compute_dynamic_scales_and_zp(hidden, args, None, global_scale=layer.input_global_scale)
    wanted = fake_quantize(hidden, scale, zero, args, global_scale=layer.input_global_scale)
    assert torch.equal(layer.rounded(hidden), wanted)


def test_inputs_are_measured_on_rows_and_joined_layers_share_the_scale(place, tmp_path):  # noqa: F811
    write_target(tmp_path / "model", layers=2, vocab_size=300, hidden_size=64, intermediate_size=64)
    given = job(place, tmp_path / "out", scheme="nvfp4")
    given.inputs["model"] = tmp_path / "model"
    assert quantize.run(given, Progress())["calibration_rows"] == 20
    stored = load_file(tmp_path / "out/model.safetensors")
    model, seen = load_model(tmp_path / "model"), {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "layers" in name:
            module.register_forward_pre_hook(
                lambda _, found, name=name: seen.update({name: max(seen.get(name, 0), found[0].abs().max().item())})
            )
    for document in calibration_documents(place / "data", tmp_path / "model", 20, 64, 0):
        model(torch.tensor(np.asarray(document.input_ids), dtype=torch.long)[None])
    for name, largest in seen.items():
        found = stored[f"{name}.input_global_scale"].item()
        assert found == pytest.approx(448 * 6 / largest, rel=0.02)  # documents of a packed row differ by rounding
    scales = {stored[f"model.layers.1.self_attn.{name}_proj.input_global_scale"].item() for name in "qkv"}
    assert len(scales) == 1
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert verify_weights(config, read_directory(tmp_path / "out")) == []
    ids = torch.arange(5, 40)[None]
    with torch.no_grad():
        ours = load_quantized(tmp_path / "out", torch.float32)
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
        theirs(ids)  # decompresses the weights, in bfloat16
        torch.nn.Module.float(theirs)  # in bfloat16 the library rounds the scales of activations twice, which kernels do not
        for name, module in ours.named_modules():
            if isinstance(module, Nvfp4Linear):
                weight = module.decode({part: getattr(module, part) for part in module.parts})
                torch.testing.assert_close(theirs.get_submodule(name).weight.data, weight, rtol=2**-7, atol=0)
                theirs.get_submodule(name).weight.data = weight
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=1e-3)
