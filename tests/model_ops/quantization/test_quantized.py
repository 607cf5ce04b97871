"""Int8 W8A8: the error bound, the exactness of products, and quantized directories that compute what they should."""

from __future__ import annotations

import itertools
import json
from contextlib import nullcontext

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, preset_name_to_scheme
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gptq import job, place  # noqa: F401
from tiny_models import tiny_model
from torch import nn

from model_ops.files.tensor_files import read_directory
from model_ops.jobs import ModelError, Progress
from model_ops.operations.quantize import quantize_directory
from model_ops.quantization import fp8_linear, int8_linear, load_quantized
from model_ops.quantization.fp8_linear import Fp8BlockLinear
from model_ops.quantization.int8_linear import (
    ChannelInt8Linear,
    Int8Linear,
    PackedInt8Linear,
    int8_product,
    int8_product_padded,
    int8_product_portable,
    pack_int8,
    quantize_symmetric,
    unpack_int8,
)
from model_ops.quantization.model_layers import Expert, SeparateExperts, fused_layers
from model_ops.quantization.schemes import SCHEMES, W8A8


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


HIDDEN, WIDTH, EXPERTS = 16, 24, 5


def layer(out_features, in_features):
    made = Int8Linear(in_features, out_features, False, torch.float32, W8A8.stored(out_features, in_features))
    for name, value in Int8Linear.encode(torch.randn(out_features, in_features)).items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("tokens", [1, 40])
def test_each_token_gets_the_weighted_sum_of_its_experts(monkeypatch, tokens):
    torch.manual_seed(0)
    experts = SeparateExperts(
        [Expert(layer(WIDTH, HIDDEN), layer(WIDTH, HIDDEN), layer(HIDDEN, WIDTH)) for _ in range(EXPERTS)], nn.SiLU()
    )
    hidden, weights = torch.randn(tokens, HIDDEN), torch.rand(tokens, 2)
    chosen = torch.stack([torch.randperm(EXPERTS - 1)[:2] for _ in range(tokens)])  # nobody chooses the last one
    wanted = torch.stack(
        [
            sum(
                weight * each.down(nn.functional.silu(each.gate(row[None])) * each.up(row[None]))[0]
                for weight, each in zip(of_row, (experts.each[n] for n in numbers), strict=True)
            )
            for row, of_row, numbers in zip(hidden, weights, chosen.tolist(), strict=True)
        ]
    )
    transfers, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: transfers.append(self) or tolist(self))
    monkeypatch.setattr(torch.Tensor, "nonzero", None)  # its result's size is read from the device
    torch.testing.assert_close(experts(hidden, chosen, weights), wanted, rtol=1e-5, atol=1e-5)
    assert len(transfers) == 1


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 8), width=st.integers(1, 64), exponent=st.integers(-20, 20), seed=st.integers(0, 1_000))
def test_error_is_at_most_half_a_scale(rows, width, exponent, seed):
    values = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    quantized, scale = quantize_symmetric(values)
    error = (quantized.double() * scale.double() - values.double()).abs()
    assert (error <= scale.double() / 2 * (1 + 1e-5)).all()
    assert quantized.abs().amax(dim=1).eq(127).logical_or(values.abs().amax(dim=1) == 0).all()


def test_a_row_of_zeros_stays_zero():
    quantized, scale = quantize_symmetric(torch.zeros(2, 5))
    assert not quantized.any() and torch.isfinite(scale).all() and (scale > 0).all()


@pytest.mark.parametrize(("m", "k", "n"), [(1, 8, 3), (5, 1_500, 7), (33, 4_096, 17), (2, 3, 1)])
def test_products_are_exact_and_equal_on_every_way(monkeypatch, m, k, n):
    generator = torch.Generator().manual_seed(k)
    left = torch.randint(-127, 128, (m, k), dtype=torch.int8, generator=generator)
    right = torch.randint(-127, 128, (n, k), dtype=torch.int8, generator=generator)
    right[0] = 127  # the largest sums
    exact = left.long() @ right.long().t()
    assert torch.equal(int8_product(left, right).long(), exact)
    assert torch.equal(int8_product_portable(left, right).long(), exact)

    def as_on_cuda(rows, columns):
        assert rows.shape[0] > 16 and rows.shape[1] % 8 == 0 and columns.shape[1] % 8 == 0 and rows.is_contiguous()
        return matmul(rows, columns)

    def matmul(rows, columns):  # a CPU's own kernel need not be exact
        return (rows.double() @ columns.double()).int()

    monkeypatch.setattr(int8_linear.torch_internals, "int8_matmul", as_on_cuda)
    assert torch.equal(int8_product_padded(left, right).long(), exact)


@pytest.mark.parametrize("largest", [32_767, 10**9])
def test_a_cpu_kernel_that_saturates_is_not_used(monkeypatch, largest):
    """As oneDNN's: pairs of products are summed in 16 bits, of values that were shifted to be unsigned."""

    def saturating(left, right):
        pairs = [(left[:, at : at + 2].double() + 128) @ right[at : at + 2].double() for at in range(0, left.shape[1], 2)]
        return (sum(pair.clamp(-largest - 1, largest) for pair in pairs) - 128 * right.double().sum(0)).int()

    clock = iter(range(100))  # the kernel is faster: the third and fourth readings are further apart
    monkeypatch.setattr(int8_linear.time, "perf_counter", lambda: next(clock) ** 2)
    monkeypatch.setattr(int8_linear.torch_internals, "int8_matmul", saturating)
    int8_linear.kernel_suits_cpu.cache_clear()
    try:
        assert int8_linear.kernel_suits_cpu() == (largest > 32_767)
        left, right = (torch.full((3, 64), value, dtype=torch.int8) for value in (127, -127))
        assert torch.equal(int8_product(left, right), torch.full((3, 3), -127 * 127 * 64, dtype=torch.int32))
    finally:
        int8_linear.kernel_suits_cpu.cache_clear()


@pytest.mark.parametrize("product", ["right", "wrong", "refused"])
def test_an_fp8_kernel_that_differs_or_fails_is_not_used(monkeypatch, product):
    def kernel(left, right, left_scale, right_scale, dtype):
        if product == "refused":
            raise RuntimeError("not supported")
        return (((left.float() * left_scale) @ (right.float() * right_scale).t()) * (1.05 if product == "wrong" else 1)).to(
            dtype
        )

    monkeypatch.setattr(fp8_linear, "fp8_product_scaled", kernel)
    with nullcontext() if product == "right" else pytest.warns(UserWarning, match="FP8 products are left out on cpu"):
        assert fp8_linear.kernel_agrees(torch.device("cpu")) == (product == "right")


@pytest.mark.gpu
@pytest.mark.parametrize(("m", "k", "n"), [(1, 4_096, 4_096), (17, 1_500, 7), (2_048, 64, 24)])
def test_on_cuda_products_are_exact(m, k, n):
    left, right = (torch.randint(-127, 128, (rows, k), dtype=torch.int8) for rows in (m, n))
    assert torch.equal(int8_product(left.cuda(), right.cuda()).cpu(), int8_product(left, right))


def test_int8_linear_equals_its_definition():
    torch.manual_seed(0)
    weight, bias, hidden = torch.randn(6, 16), torch.randn(6), torch.randn(2, 3, 16)
    layer = Int8Linear(16, 6, bias=True, dtype=torch.float32, stored=W8A8.stored(6, 16))
    layer.weight, layer.weight_scale = quantize_symmetric(weight)
    layer.bias = bias
    activations, scale = quantize_symmetric(hidden)
    expected = (activations * scale) @ (layer.weight * layer.weight_scale).t() + bias
    torch.testing.assert_close(layer(hidden), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("model_type", "tied"), [("llama", False), ("mistral", True), ("qwen2", True), ("qwen3", False)])
def test_quantized_directory_computes_nearly_the_same(tmp_path, model_type, tied):
    model = tiny_model(model_type, layers=3, tied=tied)
    model.save_pretrained(tmp_path / "source")
    metrics = quantize_directory(tmp_path / "source", tmp_path / "quantized", Progress())
    assert metrics["tensors_quantized"] == 3 * 7
    headers = read_directory(tmp_path / "quantized")
    assert headers["model.layers.0.self_attn.q_proj.weight"].dtype == "I8"
    assert headers["model.layers.0.self_attn.q_proj.weight_scale"].shape == (32, 1)
    assert ("lm_head.weight" in headers) == (not tied)
    quantized = load_quantized(tmp_path / "quantized")
    assert sum(isinstance(module, Int8Linear) for module in quantized.modules()) == 21
    ids = torch.randint(0, 96, (2, 20))
    with torch.no_grad():
        expected = model(ids).logits.log_softmax(-1)
        found = quantized(ids).logits.log_softmax(-1)
        kl = (expected.exp() * (expected - found)).sum(-1).mean()
    assert 0 < kl < 0.02
    generated = quantized.generate(ids[:, :4], max_new_tokens=5, do_sample=False)
    assert generated.shape[1] <= 9


def test_recovery_on_what_cannot_be_quantized(tmp_path):
    model = tiny_model(layers=2)
    model.save_pretrained(tmp_path / "m")
    quantize_directory(tmp_path / "m", tmp_path / "q", Progress())
    with pytest.raises(ModelError, match="quantized already"):
        quantize_directory(tmp_path / "q", tmp_path / "again", Progress())
    config_path = tmp_path / "m" / "config.json"
    config = json.loads(config_path.read_text())
    config_path.write_text(json.dumps({**config, "model_type": "gpt2"}))
    with pytest.raises(ModelError, match="gpt2"):
        quantize_directory(tmp_path / "m", tmp_path / "again", Progress())
    model.model.layers[1].mlp.up_proj.weight.data[3, 4] = float("nan")
    model.save_pretrained(tmp_path / "nan")
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj\.weight holds values that are not finite"):
        quantize_directory(tmp_path / "nan", tmp_path / "again", Progress())
    assert not (tmp_path / "again" / "model.safetensors").exists()


def test_sharded_source(tmp_path):
    model = tiny_model(layers=3)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert (tmp_path / "many" / "model.safetensors.index.json").exists()
    quantize_directory(tmp_path / "one", tmp_path / "q1", Progress())
    quantize_directory(tmp_path / "many", tmp_path / "q2", Progress())
    first, second = read_directory(tmp_path / "q1"), read_directory(tmp_path / "q2")
    assert first.keys() == second.keys()
    assert all(first[name].read() == second[name].read() for name in first)
    assert not (tmp_path / "q2" / "model.safetensors.index.json").exists()


def test_loader_names_what_is_missing(tmp_path):
    from safetensors.torch import load_file, save_file

    tiny_model(layers=2).save_pretrained(tmp_path / "m")
    quantize_directory(tmp_path / "m", tmp_path / "q", Progress())
    tensors = load_file(tmp_path / "q" / "model.safetensors")
    del tensors["model.layers.1.self_attn.o_proj.weight_scale"]
    save_file(tensors, tmp_path / "q" / "model.safetensors")
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.o_proj\.weight_scale is missing"):
        load_quantized(tmp_path / "q")
    with pytest.raises(ModelError, match="not quantized"):
        load_quantized(tmp_path / "m")
