"""Kernels and recorded forwards on a CUDA device against plain torch there. Run by `make gpu` and `benchmarks.gpu`."""

import pytest
import torch

from model_ops.adapters.lora import LoraLinear, SharedInput
from model_ops.adapters.lora_settings import LoraSettings
from model_ops.calibration import gptq_codes
from model_ops.decoding.decode_loop import decode
from model_ops.decoding.runner import new_runner
from model_ops.models.tiny_families import tiny_model
from model_ops.quantization import fp8_linear
from model_ops.tensors import cuda_rows

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def needs_a_device():
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_kernels_give_the_numbers_of_torch(dtype):
    pytest.importorskip("triton")
    for pair in cuda_rows._pairs(CUDA, dtype):
        assert cuda_rows._difference(pair) < (1e-5 if dtype == torch.float32 else 1e-2)
    assert cuda_rows.agrees(CUDA)


@pytest.mark.parametrize("width", [128, 4_096, 14_336])
def test_norms_of_wide_rows(width):
    pytest.importorskip("triton")
    x, added, gradient = torch.randn(3, 300, width, device=CUDA).bfloat16()
    weight = torch.randn(width, device=CUDA).bfloat16()
    summed, output, scales = cuda_rows.norm(x, added, weight, 1e-5, 0.0, True, torch.bfloat16)
    plain = torch.nn.functional.rms_norm((x + added).float(), (width,), weight.float(), 1e-5)
    assert (output.float() - plain).norm() < 1e-2 * plain.norm() and torch.equal(summed, x + added)
    leaf = summed.float().requires_grad_()
    torch.nn.functional.rms_norm(leaf, (width,), weight.float(), 1e-5).backward(gradient.float())
    found, of_weight = cuda_rows.norm_gradient(gradient, None, summed, weight, scales, 0.0, True)
    assert (found.float() - leaf.grad).norm() < 1e-2 * leaf.grad.norm() and of_weight.isfinite().all()


def test_gptq_rounds_a_block_in_one_pass():
    pytest.importorskip("triton")
    block, spread = torch.randn(4_096, 128, device=CUDA), torch.randn(128, 128, device=CUDA).mul_(0.05).triu_()
    spread += torch.eye(128, device=CUDA)
    scales = torch.rand(4_096, 128, device=CUDA) * 0.2 + 0.1
    found = gptq_codes.round_block_in_one_pass(block.clone(), spread, scales)
    wanted = gptq_codes.round_block(block.clone(), spread, scales)
    assert (found[0] != wanted[0]).float().mean() < 1e-3


def test_fp8_products_are_those_of_their_codes():
    if torch.cuda.get_device_capability() < fp8_linear.FIRST_WITH_FP8:
        pytest.skip("this device multiplies no FP8")
    assert fp8_linear.kernel_suits(CUDA)


def test_adapters_of_one_input_learn_as_single_ones():
    generator = torch.Generator().manual_seed(0)
    layers = [
        LoraLinear.over(torch.nn.Linear(256, out, bias=False, device=CUDA).bfloat16(), LoraSettings(rank=16), generator)
        for out in (256, 64, 64)
    ]
    for layer in layers:
        torch.nn.init.normal_(layer.lora_B, std=0.05)
    found = []
    for shares in (False, True):
        if shares:
            SharedInput(layers)
        x = torch.randn(512, 256, device=CUDA, generator=torch.Generator(CUDA).manual_seed(1)).bfloat16().requires_grad_()
        hidden = x * 2
        outputs = [layer(hidden) for layer in layers]
        sum(each.float().square().sum() for each in outputs).backward()
        found.append([*outputs, x.grad, *(layer.lora_A.grad.clone() for layer in layers)])
        for layer in layers:
            layer.zero_grad()
    for one, other in zip(*found, strict=True):
        assert (one.float() - other.float()).norm() < 0.02 * other.float().norm()


def test_recorded_forwards_give_the_text_of_plain_ones():
    runner = new_runner(tiny_model("llama", attention="sdpa").to(CUDA))
    prompts = [[5, 9, 3, 17], [4, 4], [30, 2, 8, 41, 7]]
    options = {"eos_ids": {7}, "temperature": 0.0, "max_new_tokens": 60}
    assert runner.graphed
    recorded = decode(runner, prompts, ["a", "b", "c"], **options)
    runner.graphed = False
    plain = decode(runner, prompts, ["a", "b", "c"], **options)
    assert [answer.tokens for answer in recorded] == [answer.tokens for answer in plain]
