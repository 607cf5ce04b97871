"""Triton's kernels on a CPU, in numpy (tests/conftest.py asks for its interpreter). Importing this skips the tests of a module where
Triton is missing, or where a device compiles its kernels instead."""

import os

import pytest

pytest.importorskip("triton", reason="Triton is not installed, so its kernels are not compared with their twins")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("a CUDA device is here: test_on_a_device.py compares the kernels there", allow_module_level=True)
