"""Rates that an accelerator reaches in matrix products, attention (forward and backward on a row of 4,096 tokens) and copies:
measured on the device once and kept in the user's cache folder, else shares of its data sheet. `python -m
model_ops.machine.device_rates` measures and prints them. Imports no torch until it measures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

from model_ops.files import write_json
from model_ops.machine.devices import Device, device_of
from model_ops.machine.process import set_torch_environment

NVIDIA = Path("/dev/nvidiactl")
"""There where the driver of an NVIDIA device is loaded."""
MATMUL_SHARE, ATTENTION_SHARE, COPY_SHARE = 0.71, 0.36, 0.88
"""Assumed shares of the data sheet's FLOP/s and bandwidth, where nothing was measured: what others report of H100 and H200 for
bfloat16 products of random numbers (about 700 TFLOP/s), FlashAttention-2 forward and backward (about 350), and copies."""
FLOPS_PER_BYTE = 250
"""FLOP/s over bytes/s of a device whose bandwidth is unknown."""
SHAPES = ((8_192, 4_096, 4_096), (8_192, 4_096, 14_336), (8_192, 14_336, 4_096))
"""Rows, inputs and outputs of the measured products."""
REPEATS = 7


class DeviceRates(NamedTuple):
    """What one device reaches. FLOPs are bfloat16."""

    matmul_tflops: float
    attention_tflops: float
    copy_tb_s: float

    @classmethod
    def assumed(cls, device: Device, peak_tflops: float) -> DeviceRates:
        """Shares of the data sheet. peak_tflops: of the device, or what an unknown one is taken to have."""
        bandwidth = device.bandwidth_tb_s or peak_tflops / FLOPS_PER_BYTE
        return cls(MATMUL_SHARE * peak_tflops, ATTENTION_SHARE * peak_tflops, COPY_SHARE * bandwidth)


@lru_cache(maxsize=64)
def rates_of(device: Device, peak_tflops: float) -> DeviceRates:
    """The rates that were measured on such a device, here at the first call where this machine has one; else assumed ones."""
    if not device.is_cpu:
        with suppress(OSError, RuntimeError, ValueError, TypeError):
            return DeviceRates(**json.loads(_file(device.name).read_text()))
        if NVIDIA.exists():
            with suppress(OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError):
                done = subprocess.run([sys.executable, "-m", "model_ops.machine.device_rates"], capture_output=True, check=True)
                rates = json.loads(done.stdout)
                if rates.pop("device") == device.name:
                    return DeviceRates(**rates)
    return DeviceRates.assumed(device, peak_tflops)


def measured() -> DeviceRates:
    """Measures this process's CUDA device, in about two seconds and with less than a gigabyte."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    work = [(2.0 * rows * inner * outer, drawn(rows, inner), drawn(inner, outer)) for rows, inner, outer in SHAPES]
    seconds = [median(seconds_of(lambda one=one, other=other: one @ other)) for _, one, other in work]
    products = sum(flops for flops, *_ in work) / sum(seconds)
    heads, length, width = 16, 4_096, 128
    streams = [drawn(1, heads, length, width).requires_grad_() for _ in range(3)]
    upstream = drawn(1, heads, length, width)

    def attend() -> None:
        torch.autograd.grad(scaled_dot_product_attention(*streams, is_causal=True), streams, upstream)

    attention = 6.0 * heads * width * length * length / median(seconds_of(attend))  # causal: half of 12 operations a pair
    source = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copied = 2.0 * source.numel() / median(seconds_of(lambda: target.copy_(source)))
    return DeviceRates(*(round(value / 1e12, 3) for value in (products, attention, copied)))


def keep(rates: DeviceRates, name: str) -> None:
    """Keeps the rates of the device with this name in the table, in the user's cache folder, if there is a place."""
    with suppress(OSError, RuntimeError):
        write_json(_file(name), rates._asdict())


def seconds_of(work: Callable[[], object]) -> list[float]:
    """Seconds of REPEATS calls on the CUDA device, after some that are not measured."""
    import torch

    for _ in range(3):
        work()
    seconds = []
    for _ in range(REPEATS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        work()
        ended.record()
        torch.cuda.synchronize()
        seconds.append(began.elapsed_time(ended) / 1e3)
    return seconds


def _file(name: str) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()  # RuntimeError: a user without a home
    return folder / "millrace" / "device_rates" / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.json"


if __name__ == "__main__":
    set_torch_environment()
    import torch

    device = device_of(torch.cuda.get_device_name())
    rates = measured()
    if device is not None:
        keep(rates, device.name)
    print(json.dumps({"device": None if device is None else device.name, **rates._asdict()}))
