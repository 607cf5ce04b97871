"""The dtype in which vLLM serves on this machine: float32 on CPUs that are slower in bfloat16."""

import json

import pytest

from model_ops.machine.precision import Speeds
from model_ops.serving import cpu_dtype
from model_ops.serving.cpu_dtype import dtype_words

SLOW, FAST = Speeds(float32=12.0, bfloat16=0.5), Speeds(float32=100.0, bfloat16=700.0)


@pytest.mark.parametrize(
    "kind, speeds, accelerator, given, words",
    [
        ("vllm", SLOW, False, [], ["--dtype", "float32"]),
        ("vllm", FAST, False, [], []),
        ("vllm", SLOW, True, [], []),
        ("sglang", SLOW, False, [], []),
        ("vllm", SLOW, False, ["--max-model-len", "512"], ["--dtype", "float32"]),
        ("vllm", SLOW, False, ["--dtype", "bfloat16"], []),
        ("vllm", SLOW, False, ["--dtype=auto"], []),
        ("vllm", SLOW, False, ["--mamba-cache-dtype", "float16"], ["--dtype", "float32"]),
    ],
)
def test_vllm_is_told_float32_where_the_cpu_serves_and_is_slow_in_bfloat16(
    monkeypatch, tmp_path, kind, speeds, accelerator, given, words
):
    asked = []
    monkeypatch.setattr(cpu_dtype, "cpu_speeds", lambda threads: asked.append(threads) or speeds)
    monkeypatch.setattr(cpu_dtype, "ACCELERATORS", (tmp_path if accelerator else tmp_path / "none", tmp_path / "neither"))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    (tmp_path / "config.json").write_text("{}")
    assert dtype_words(kind, tmp_path, given) == words
    assert asked in ([], [3])


@pytest.mark.parametrize(
    "config, takes",
    [
        ({}, True),
        ({"quantization_config": {"format": "int-quantized", "kv_cache_scheme": None}}, True),
        ({"quantization_config": {"format": "int-quantized", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, False),
        ({"quantization_config": {"format": "pack-quantized"}}, False),  # vLLM 0.32's kernel takes 16 bits only
        ({"quantization_config": {"quant_method": "fp8"}}, False),
        (None, False),
    ],
)
def test_kernels_that_take_no_float32_keep_the_dtype_of_the_weights(monkeypatch, tmp_path, config, takes):
    monkeypatch.setattr(cpu_dtype, "cpu_speeds", lambda threads: SLOW)
    monkeypatch.setattr(cpu_dtype, "ACCELERATORS", ())
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert dtype_words("vllm", tmp_path) == (["--dtype", "float32"] if takes else [])
