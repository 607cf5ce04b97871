"""The dtype that vLLM serves a model in on this machine's CPU: float32 where that is faster than bfloat16. Imports no torch.

vLLM takes the dtype of the weights, bfloat16, and emulates it where the processor has no units for it."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from model_ops.machine import cpu_speeds
from model_ops.serving.service import ServerKind

ACCELERATORS = (Path("/proc/driver/nvidia/gpus"), Path("/dev/kfd"))
"""What the drivers of NVIDIA and AMD make."""
SERVES_FLOAT32 = "vLLM serves in float32, in which this machine's CPU is faster than in bfloat16; --dtype chooses another"


def dtype_words(server: ServerKind, target: Path, given: Sequence[str] = ()) -> list[str]:
    """Words for `vllm serve` on this machine. target: the model. given: other words, which may choose a dtype."""
    if (
        server != "vllm"
        or any(word.partition("=")[0] == "--dtype" for word in given)
        or any(place.exists() for place in ACCELERATORS)
        or not _takes_float32(target)
    ):
        return []
    threads = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
    return ["--dtype", "float32"] if cpu_speeds(threads).precision == "float32" else []


def _takes_float32(target: Path) -> bool:
    """Whether vLLM's kernels for CPUs take float32: those of plain weights and of int8 W8A8 (vLLM 0.32; w4a16 fails in it)."""
    try:
        quantization = json.loads((target / "config.json").read_text(encoding="utf-8")).get("quantization_config")
    except (OSError, ValueError):
        return False
    return quantization is None or (
        quantization.get("format") == "int-quantized" and quantization.get("kv_cache_scheme") is None
    )
