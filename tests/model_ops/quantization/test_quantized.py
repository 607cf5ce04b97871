"""Int8 W8A8: the error bound, the exactness of products, and quantized directories that compute what they should."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_model

from model_ops.files.tensor_files import read_directory
from model_ops.jobs.job import ModelError, Progress
from model_ops.operations.quantize import quantize_directory
from model_ops.quantization import fp8_linear, int8_linear
from model_ops.quantization.int8_linear import (
    Int8Linear,
    int8_product,
    int8_product_padded,
    int8_product_portable,
    quantize_symmetric,
)
from model_ops.quantization.quantized_model import load_quantized
from model_ops.quantization.schemes import W8A8


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
