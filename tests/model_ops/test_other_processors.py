"""Training and distillation as a processor with AVX2 alone computes them: in emulated bfloat16, and in float32, as
`make test` does by itself on such a processor.

The variables hold oneDNN's and torch's kernels to AVX2 on any machine. What `precision: auto` stands for is what the cache
folder says.
"""

import os
import subprocess
import sys

import pytest

from model_ops.machine.precision import Speeds
from tests.command import PROJECT
from tests.reports import process_report
from tests.thorough_cases import thorough_except

AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
FILES = ("test_training_operations.py", "test_adapters_in_sft.py", "test_teacher_cache.py", "training/test_golden_losses.py")
EMULATED = Speeds(2.0, 1.0)
KEEP = "import sys; from model_ops.machine import precision; precision._cached(1, lambda: precision.Speeds(*map(float, sys.argv[1:])))"


@pytest.mark.slow
@pytest.mark.parametrize(
    "speeds", thorough_except([EMULATED], [EMULATED, Speeds(1.0, 2.0)]), ids=lambda speeds: speeds.precision
)
def test_training_on_a_processor_with_avx2(tmp_path, speeds):
    environment = os.environ | AVX2 | {"XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", KEEP, *map(str, speeds)], cwd=PROJECT, env=environment, check=True)
    assert list(tmp_path.glob("millrace/cpu_speeds/*.json"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-o", "cpu_seconds=100",
         "-m", "not slow and not thorough", *(f"tests/model_ops/{name}" for name in FILES)],
        cwd=PROJECT, env=environment, text=True, capture_output=True)  # fmt: skip
    assert done.returncode == 0, process_report(done)
