"""One case of a benchmark in a process of its own, so that cases do not share memory.

figures = one_case("plan", "--case", {"hidden": 512})     # python -m benchmarks.plan --case '{"hidden": 512}'
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from model_ops.machine.process import set_torch_environment

PROJECT = Path(__file__).resolve().parent.parent


def one_case(name: str, flag: str, case: Any, **environment: str) -> Any:
    """Runs a case and returns its last line of output, parsed. environment: in addition to the worker's. Raises SystemExit
    with the end of the case's messages if it fails."""
    set_torch_environment()
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", flag, json.dumps(case)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    if done.returncode:
        raise SystemExit(f"{name} {case}: {done.stderr[-2_000:] or done.stdout[-2_000:]}")
    return json.loads(done.stdout.splitlines()[-1])
