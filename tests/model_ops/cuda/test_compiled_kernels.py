"""Triton's kernels become machine code of devices that are not here: every launch's types and constants compile."""

import json
import os
import subprocess
import sys

import pytest

from tests.command import PROJECT
from tests.model_ops import interpreted  # noqa: F401  skips where Triton is missing


@pytest.mark.parametrize("capability", [80, 90, pytest.param(100, marks=pytest.mark.thorough)])
def test_every_kernel_compiles(capability, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.model_ops.cuda.compile_kernels", str(capability)]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    sizes = json.loads(done.stdout)
    kernels = {"norm_rows", "norm_gradient_rows", "gated_rows", "gated_gradient_rows", "rotated_rows", "round_columns"}
    assert sizes.keys() == kernels and all(size for of_kernel in sizes.values() for size in of_kernel)
