"""Compiles the machine code (numba) of cleaning, packing and drafting, which the first run would otherwise wait for.

    python -m pipelines.demo.compile_kernels      # half a minute; seconds where it is compiled already

It lies where `model_ops.compiled` keeps it: beside the sources, or in the user's cache folder. `make demo` calls this once,
after the installation.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from model_ops.decoding.suffix import SuffixCache
from model_ops.training.bin_packing import pack
from pipelines.demo.traffic import write_traffic
from resources.inspecting.inspection import inspect


def compile_kernels() -> None:
    """Calls every kernel on a little traffic, with the types that real runs call it with."""
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        write_traffic(Path(folder), interactions=100, days=2)
        inspect([str(Path(folder) / "gateway")])
    pack([5, 4, 4, 3, 3, 2, 2, 2, 1], capacity=8)
    request = SuffixCache().open([1, 2, 3, 1, 2])
    request.extend([3])
    request.propose(3)


if __name__ == "__main__":
    compile_kernels()
