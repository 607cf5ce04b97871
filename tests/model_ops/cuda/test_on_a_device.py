"""Products, attention and recorded forwards on a CUDA device against plain torch. Run by `make gpu` and `benchmarks.gpu`."""

import pytest
import torch

from model_ops.decoding.decode_loop import decode
from model_ops.decoding.runner import new_runner
from model_ops.models.attention import packed_attention
from model_ops.models.tiny_families import tiny_model
from model_ops.quantization import fp8_linear

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def needs_a_device():
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")


def test_fp8_products_are_those_of_their_codes():
    if torch.cuda.get_device_capability() < fp8_linear.FIRST_WITH_FP8:
        pytest.skip("this device multiplies no FP8")
    drawn = torch.randn(2, 48, 64, device=CUDA, generator=torch.Generator(CUDA).manual_seed(0))
    (left, left_scale), (right, right_scale) = map(fp8_linear.quantize_fp8, drawn)
    product = fp8_linear.fp8_product_scaled(left, right, left_scale, right_scale, torch.bfloat16).float()
    plain = (left.float() * left_scale) @ (right.float() * right_scale).t()
    assert (product - plain).norm() < 0.02 * plain.norm()


@pytest.mark.parametrize("lengths", [[1_027, 1_027], [4_096]])
def test_packed_attention_is_the_cpu_s(lengths):
    generator = torch.Generator().manual_seed(0)
    streams = [torch.randn(1, heads, sum(lengths), 128, generator=generator) for heads in (4, 2, 2)]
    sides = []
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        leaves = [stream.to(device, dtype).requires_grad_() for stream in streams]
        output, _ = packed_attention(torch.nn.Module(), *leaves, document_lengths=lengths)
        sides.append([output, *torch.autograd.grad(output.float().square().sum(), leaves)])
    for one, other in zip(*sides, strict=True):
        assert (one - other.float().cpu()).norm() < 0.03 * one.norm()


def test_recorded_forwards_give_the_text_of_plain_ones():
    runner = new_runner(tiny_model("llama", attention="sdpa").to(CUDA))
    prompts = [[5, 9, 3, 17], [4, 4], [30, 2, 8, 41, 7]]
    options = {"eos_ids": {7}, "temperature": 0.0, "max_new_tokens": 60}
    assert runner.graphed
    recorded = decode(runner, prompts, ["a", "b", "c"], **options)
    runner.graphed = False
    plain = decode(runner, prompts, ["a", "b", "c"], **options)
    assert [answer.tokens for answer in recorded] == [answer.tokens for answer in plain]
