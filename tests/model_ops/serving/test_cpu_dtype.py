"""The dtype in which vLLM serves on this machine: float32 on CPUs that are slower in bfloat16."""

import pytest

from model_ops.precision import Speeds
from model_ops.serving import cpu_dtype
from model_ops.serving.cpu_dtype import dtype_words

SLOW, FAST = Speeds(float32=12.0, bfloat16=0.5), Speeds(float32=100.0, bfloat16=700.0)


@pytest.mark.parametrize("kind, speeds, accelerator, given, words", [
    ("vllm", SLOW, False, [], ["--dtype", "float32"]),
    ("vllm", FAST, False, [], []),
    ("vllm", SLOW, True, [], []),
    ("sglang", SLOW, False, [], []),
    ("vllm", SLOW, False, ["--max-model-len", "512"], ["--dtype", "float32"]),
    ("vllm", SLOW, False, ["--dtype", "bfloat16"], []),
    ("vllm", SLOW, False, ["--dtype=auto"], []),
    ("vllm", SLOW, False, ["--mamba-cache-dtype", "float16"], ["--dtype", "float32"]),
])
def test_vllm_is_told_float32_where_the_cpu_serves_and_is_slow_in_bfloat16(
        monkeypatch, tmp_path, kind, speeds, accelerator, given, words):
    asked = []
    monkeypatch.setattr(cpu_dtype, "cpu_speeds", lambda threads: asked.append(threads) or speeds)
    monkeypatch.setattr(cpu_dtype, "ACCELERATORS", (tmp_path if accelerator else tmp_path / "none", tmp_path / "neither"))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert dtype_words(kind, given) == words
    assert asked in ([], [3])
