"""Triton's kernels, run by its interpreter, against plain torch."""

import pytest
import torch

from model_ops.calibration import gptq_codes
from model_ops.tensors import cuda_rows
from tests.model_ops import interpreted  # noqa: F401  before the kernels

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kernel_gives_the_numbers_of_plain_torch(dtype):
    for pair in cuda_rows._pairs(torch.device("cpu"), dtype):
        assert cuda_rows._difference(pair) < (1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize(("rows", "width"), [(5, 128), (21, 96)])
def test_gptq_rounds_a_block_in_one_pass_as_column_by_column(rows, width):
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(rows, width, generator=generator)
    spread = torch.randn(width, width, generator=generator).mul_(0.05).triu_() + torch.eye(width)
    scales = torch.rand(rows, width, generator=generator) * 0.2 + 0.1
    found = gptq_codes.round_block_in_one_pass(block.clone(), spread, scales)
    wanted = gptq_codes.round_block(block.clone(), spread, scales)
    assert wanted[0].unique().numel() > 8, "codes over the whole range"
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
