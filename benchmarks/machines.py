"""Times both demos and the suite on AVX2 and on this machine's own instructions.

    python -m benchmarks.machines --quick                       # speeds and predicted seconds, under a minute
    python -m benchmarks.machines                               # both demos on both: up to 40 minutes on 2 quiet cores
    python -m benchmarks.machines --suite native "bash .ci/run" --isa native     # and the seconds of a suite; merged
                                                                # into what was recorded for the other instructions

AVX2 is forced by three environment variables on any machine (oneDNN, ATen and MKL, whose float32 products the last one binds,
which `gflops` shows). Figures by instructions: seconds of `millrace demo --quick` and `millrace demo` from the command to its
end, what was predicted before, what was left out, and the seconds of the suite.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, record
from model_ops.machine.precision import processor
from pipelines.demo.demo import FULL, QUICK, SECONDS_BEFORE, DemoSize, fit_steps
from pipelines.storage.locations import RECIPES
from resources.launching.processes import child_environment, python_module

ISAS = {"avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}, "native": {}}
FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "bf16", "sve")
SIZES = {"quick": QUICK, "demo": FULL}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only speeds and predictions; nothing is recorded")
    parser.add_argument("--isa", choices=ISAS, action="append", help="default: both")
    parser.add_argument("--sizes", choices=[*SIZES, "none"], action="append", help="demos to run; default: both")
    parser.add_argument(
        "--suite",
        nargs=2,
        action="append",
        default=[],
        metavar=("ISA", "COMMAND"),
        help="a command whose seconds are the suite's",
    )
    parser.add_argument("--predict", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.predict:
        print(json.dumps(_predictions()))
        return
    found = {} if given.quick else _recorded()
    for isa in given.isa or ISAS:
        figures = found.setdefault(isa, {})
        figures |= _in_child(isa, python_module("benchmarks.machines", "--predict"))
        for name, size in SIZES.items():
            if not given.quick and name in (given.sizes or SIZES):
                figures |= _demo(isa, name, size)
    for isa, command in given.suite:
        began_s = time.monotonic()
        subprocess.run(shlex.split(command), env={**os.environ, **ISAS[isa]}, check=True)
        found.setdefault(isa, {})["suite"] = round(time.monotonic() - began_s)
    record("machines", {**found, "cpuinfo": _cpuinfo()}, keep=not given.quick)


def _predictions() -> dict[str, Any]:
    """Of both demos, by one measurement."""
    found: dict[str, Any] = {}
    speed = None
    for name, size in SIZES.items():
        choice = fit_steps(RECIPES / size.recipe, size.budget - SECONDS_BEFORE, size.traffic, speed)
        speed = choice.speed
        found[f"{name}_predicted"] = {
            "seconds": round(sum(choice.seconds.values())),
            "whole": round(choice.whole),
            "share_of_steps": choice.share,
        }
    return {"gflops": speed.gflops, "precision": speed.precision, **found}


def _in_child(isa: str, command: list[str]) -> Any:
    """JSON that a command prints last, under the instructions."""
    done = subprocess.run(command, env=child_environment(**ISAS[isa]), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _demo(isa: str, name: str, size: DemoSize) -> dict[str, Any]:
    """A fresh demo, as a newcomer runs it."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        command = [sys.executable, "-P", "-m", "pipelines.cli", *size.command.split()[1:]]
        began_s = time.monotonic()
        subprocess.run(command, cwd=folder, env=child_environment(**ISAS[isa]), check=True)
        seconds = time.monotonic() - began_s
        run = json.loads((Path(folder) / size.folder / "lake" / "demo-run.json").read_text())
    return {
        f"{name}_s": round(seconds, 1),
        f"{name}_run": {
            "budget": run["budget"],
            "stages": {stage: round(each, 1) for stage, each in run["seconds"].items()},
            "predicted": {stage: round(each, 1) for stage, each in run["predicted"].items()},
            "left_out": run["left_out"],
        },
    }


def _recorded() -> dict[str, Any]:
    """Figures of an earlier run, which this one completes."""
    path = RESULTS / "machines.json"
    figures = json.loads(path.read_text())["figures"] if path.exists() else {}
    return {isa: figures[isa] for isa in ISAS if isa in figures} if figures.get("cpuinfo") == _cpuinfo() else {}


def _cpuinfo() -> dict[str, Any]:
    lines = [line.partition(":") for line in processor()]
    words = {word for key, _, value in lines if key.strip() in ("flags", "Features") for word in value.split()}
    model = next((value.strip() for key, _, value in lines if key.strip() in ("model name", "CPU part")), "unknown")
    return {"model": model, "flags": [flag for flag in FLAGS if flag in words], "cores": os.cpu_count()}


if __name__ == "__main__":
    main()
