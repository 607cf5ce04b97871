"""Chooses the precision of matrix products: bfloat16 where the device multiplies it faster than float32. A CPU is measured
once, in less than a second, and the result kept in the user's cache folder. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, TypeVar

from model_ops.files import write_json

if TYPE_CHECKING:
    import torch

Precision = Literal["auto", "bfloat16", "float32"]
Concrete = Literal["bfloat16", "float32"]


class Computing(Protocol):
    """Settings with the key `precision`."""

    precision: Precision

    def model_copy(self, *, update: dict[str, Any]) -> Self: ...


Kind = TypeVar("Kind", bound=Computing)
Measurement = TypeVar("Measurement")

FASTER = 1.25
"""bfloat16 is chosen from this speed relative to float32. Processors with units for it reach 1.6 to 8, others less than 1;
below the bound, casts of weights and activations take what products gain."""
HOPELESS = 0.5
"""Below this share of float32's speed in small products, large ones are not tried in bfloat16."""
SMALL, LARGE = 192, 384
"""Rows and columns of the measured matrices: 0.1 s at 0.5 GFLOP/s, and a size from which the speed of float32 is constant."""
ROUNDS, LONGEST_SECONDS = 5, 0.2
"""Times that each product is measured; after so many seconds, no other round begins."""
VARIABLES = (
    "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "ONEDNN_DEFAULT_FPMATH_MODE", "MKL_ENABLE_INSTRUCTIONS",
    "MKL_DEBUG_CPU_TYPE",
)  # fmt: skip
"""Environment variables that choose a CPU's kernels."""
DESCRIBED = ("model name", "flags", "CPU implementer", "CPU part", "Features")
"""Lines of /proc/cpuinfo that tell processors apart, on x86 and on Arm."""


class Speeds(NamedTuple):
    """Speed of matrix products on this machine's CPU, in GFLOP/s."""

    float32: float
    bfloat16: float

    @property
    def precision(self) -> Concrete:
        """The precision that `auto` stands for."""
        return "bfloat16" if self.bfloat16 >= FASTER * self.float32 else "float32"


_FOUND: dict[str, Any] = {}
"""Measurements that this process made or read, by key."""


def concrete_precision(precision: Precision, device: torch.device) -> Concrete:
    """The precision to compute in: the given one; for auto, that of the job, or outside of a job, of the device."""
    return AUTO[-1](device) if precision == "auto" else precision


def products_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """The dtype of products in this precision."""
    import torch

    return getattr(torch, concrete_precision(precision, device))


def concrete(settings: Kind, device: torch.device) -> Kind:
    """The settings with the precision to compute in."""
    return settings.model_copy(update={"precision": concrete_precision(settings.precision, device)})


def faster_on(device: torch.device) -> Concrete:
    """bfloat16 where `device` multiplies it faster than float32."""
    if device.type == "cpu":
        return cpu_speeds().precision
    import torch

    has_units = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if has_units else "float32"


AUTO: list[Callable[[torch.device], Concrete]] = [faster_on]
"""Functions that resolve auto; the last one decides. A job adds its own (model_ops.parallel.world)."""


def products_in(precision: Precision, device: torch.device) -> AbstractContextManager:
    """A context in which products on `device` run in this precision: autocast for bfloat16."""
    import torch

    dtype = products_dtype(precision, device)
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)


def cpu_speeds(threads: int | None = None) -> Speeds:
    """Speeds of this machine's CPU, measured or from the user's cache folder. threads: None: those that torch uses in this
    process. Otherwise this process need not import torch: what is not kept yet is measured in a process of its own."""
    if threads is None:
        import torch

        return _cached(torch.get_num_threads(), measured)
    return _cached(threads, lambda: _measured_apart(threads))


def measured() -> Speeds:
    """Measures both precisions; bfloat16 in large products only where small ones are not hopeless."""
    small = gflops(SMALL, *Speeds._fields)
    if small[1] < HOPELESS * small[0]:
        return Speeds(*gflops(LARGE, "float32"), bfloat16=small[1])
    return Speeds(*gflops(LARGE, *Speeds._fields))


def gflops(side: int, *dtypes: str) -> list[float]:
    """GFLOP/s of each dtype in the three products of a linear layer's training step, on square matrices: the best of some
    rounds. A round measures every dtype, so that other load on the machine slows all of them. Time is that of this thread on
    the processor: it waits there for torch's other threads, but not for other processes."""
    import torch

    seconds: list[list[float]] = []
    pairs = [torch.ones(2, side, side, dtype=getattr(torch, name)) for name in dtypes]
    began_s = time.perf_counter()
    with torch.inference_mode():
        while not seconds or (len(seconds) < ROUNDS and time.perf_counter() - began_s < LONGEST_SECONDS):
            seconds.append([])
            for x, weight in pairs:
                started_s = time.thread_time()
                x @ weight.t(), x @ weight, x.t() @ weight
                seconds[-1].append(time.thread_time() - started_s)
    return [round(3 * 2 * side**3 / min(each) / 1e9, 3) for each in zip(*seconds, strict=True)]


def _measured_apart(threads: int) -> Speeds:
    seconds = measured_apart("model_ops.machine.precision", threads)
    return Speeds(*(seconds[name] for name in Speeds._fields))


def measured_apart(module: str, threads: int, asked: str = "") -> Any:
    """What a module prints as JSON, in a process with so many threads. asked: its standard input. Raises CalledProcessError."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", module]
    return json.loads(subprocess.run(command, env=environment, input=asked.encode(), capture_output=True, check=True).stdout)


def _cached(threads: int, measure: Callable[[], Speeds]) -> Speeds:
    return cached_measurement("cpu_speeds", [threads], lambda: measure()._asdict(), Speeds)


def cached_measurement(
    folder: str, known: list[Any], measure: Callable[[], dict[str, float]], form: Callable[..., Measurement]
) -> Measurement:
    """A measurement of this machine from the user's cache folder; else `measure()`, which is stored there. known: what it
    depends on, besides torch, the processor and its kernels. form: makes the result of the numbers."""
    known = [version("torch"), *known, *processor(), *(os.environ.get(name, "") for name in VARIABLES)]
    key = f"{folder}/{hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]}"
    if key not in _FOUND:
        with suppress(OSError, RuntimeError, ValueError, TypeError, AttributeError):
            _FOUND[key] = form(**{name: float(value) for name, value in json.loads(_file(key).read_text()).items()})
    if key not in _FOUND:
        numbers = measure()
        _FOUND[key] = form(**numbers)
        with suppress(OSError, RuntimeError):  # without a place to keep it, each process measures again
            write_json(_file(key), numbers)
    return _FOUND[key]


def _file(key: str) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()  # RuntimeError: a user without a home
    return folder / "millrace" / f"{key}.json"


def processor() -> list[str]:
    """Identity of this machine's processor: name and flags."""
    with suppress(OSError):
        lines = dict.fromkeys(line.strip() for line in Path("/proc/cpuinfo").read_text().splitlines())
        return [line for line in lines if line.startswith(DESCRIBED)]
    return [platform.machine(), platform.processor()]


if __name__ == "__main__":
    speeds = cpu_speeds()
    print(json.dumps({**speeds._asdict(), "precision": speeds.precision}))
