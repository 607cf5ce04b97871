"""Triton's kernels on a CPU, in numpy. Import this before a module with kernels; without Triton the importing tests are skipped."""

import os

import pytest

os.environ["TRITON_INTERPRET"] = "1"  # read where kernels are declared
triton = pytest.importorskip("triton", reason="Triton is not installed, so its kernels are not compared with their twins")
