"""`millrace demo --quick` as a newcomer runs it: a release at its end, soon, with nothing left to compile."""

import os
import subprocess
import sys

import pytest

from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from tests.command import PROJECT
from tests.cpu_time import allowance, cpu_seconds
from tests.reports import process_report


def python(*words, folder, **environment):
    env = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "2", **environment}
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, env=env)
    assert done.returncode == 0, process_report(done)
    return done.stdout


@pytest.mark.slow
def test_the_quick_demo_ends_with_a_release_within_its_budget(tmp_path):
    before = cpu_seconds()
    said = python("-m", "pipelines.cli", "demo", "--quick", folder=tmp_path)
    spent = cpu_seconds() - before
    assert spent < 180 * allowance(), "so much processor time fits into the budget, 180 s, on one core"
    assert "Acceptance length" in said and "Time and memory" in said
    endpoint = Endpoint(LakeLayout.open(tmp_path / "demo" / "quick" / "lake"), "code-assistant")
    assert endpoint.read().champion is not None


@pytest.mark.thorough
def test_the_quick_demo_waits_for_no_machine_code(tmp_path):
    kernels = tmp_path / "kernels"
    python("-m", "pipelines.demo.compile_kernels", folder=tmp_path, NUMBA_CACHE_DIR=str(kernels))
    compiled = {path.name for path in kernels.rglob("*.nbc")}
    assert len(compiled) > 50
    python("-m", "pipelines.cli", "demo", "--quick", folder=tmp_path, NUMBA_CACHE_DIR=str(kernels))
    assert {path.name for path in kernels.rglob("*.nbc")} == compiled
