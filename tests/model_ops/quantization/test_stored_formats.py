"""Formats of compressed-tensors: our encoding against the library's own scales and compressor, bit for bit; odd shapes."""

import itertools

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, preset_name_to_scheme
from test_gptq import job, place  # noqa: F401
from tiny_models import tiny_model

from model_ops.jobs.job import ModelError, Progress
from model_ops.operations.quantize import quantize_directory
from model_ops.quantization.fp8_linear import Fp8BlockLinear
from model_ops.quantization.int8_linear import ChannelInt8Linear, PackedInt8Linear, pack_int8, unpack_int8
from model_ops.quantization.model_layers import fused_layers
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


def test_zeros_and_extreme_groups_stay_finite():
    given = torch.zeros(4, 128)
    given[1], given[2, :5], given[3] = 1e-30, 3e30, -1e-4
    for layer in (PackedInt8Linear, ChannelInt8Linear):
        decoded = layer.decode(layer.encode(given))
        assert torch.isfinite(decoded).all() and not decoded[0].any()


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
