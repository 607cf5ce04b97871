"""Triton's kernels over rows, run by its interpreter, against plain torch; and what is planned for them on fake tensors."""

import pytest
import torch

from model_ops.tensors import cuda_rows
from tests.model_ops import interpreted  # noqa: F401  before the kernels

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kernel_gives_the_numbers_of_plain_torch(dtype):
    for pair in cuda_rows._pairs(torch.device("cpu"), dtype):
        assert cuda_rows._difference(pair) < (1e-5 if dtype == torch.float32 else 1e-2)
