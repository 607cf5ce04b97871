"""What only a CUDA device can show: tests with the mark `gpu`, then speed and memory of training and inference at 8B.

    make gpu                               # on a machine with a device: every part that has no result yet
    make gpu AGAIN=1                       # every part again
    python -m benchmarks.gpu --parts attention,sft-lora-4096
    python -m benchmarks.gpu               # without a device: toys on the CPU, to see that the parts work; nothing is recorded

Every part is a process of its own with ten minutes at most. Its row enters benchmarks/results/gpu.json when the part ends, so
the same command continues a run that was killed. Parts that failed, and results of another device or torch, are measured again.
An error of a part, such as missing memory, is a row too; the command then ends with 1.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, described
from model_ops.files.atomic_files import write_json
from model_ops.machine.torch_environment import set_torch_environment

PROJECT = Path(__file__).resolve().parent.parent
PART_SECONDS = 590
NO_DEVICE = (
    "torch finds no CUDA device here: run `make gpu` on a machine with an NVIDIA GPU, its driver and a CUDA build of torch"
)
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tests": ("marked_tests", {}),
    "attention": ("attention", {}),
    "deterministic": ("deterministic", {}),
    "sft-lora-4096": ("sft", {"method": "lora", "length": 4_096}),
    "eagle3": ("eagle3", {}),
    "generation": ("generation", {}),
    "int8-decoding": ("int8_decoding", {}),
    "evaluation": ("evaluation", {}),
    "compiled": ("compiled", {}),
    **{
        f"sft-{method}-{length}": ("sft", {"method": method, "length": length})
        for method, length in (("full", 4_096), ("lora", 32_768), ("full", 32_768), ("lora", 131_072), ("full", 131_072))
    },
}
"""Name -> function and arguments, the most telling parts first."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--parts", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--again", action="store_true", help="measure parts again that have a result")
    parser.add_argument("--cuda", action="store_true", help="end with an error if there is no CUDA device")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--watched", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        if given.watched is not None:
            _end_with_the_other_side_of(given.watched)
        print(json.dumps(measure(given.part)))
        return 0
    names = given.parts.split(",") if given.parts else list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]}; parts are {', '.join(PARTS)}")
    device = device_name()
    if device is None and given.cuda:
        print(NO_DEVICE, file=sys.stderr)
        return 1
    rows = run_parts(names, RESULTS / "gpu.json" if device else None, device or "cpu", in_a_process, given.again)
    failed = [name for name in names if "error" in rows[name]]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def run_parts(
    names: Sequence[str], results: Path | None, device: str, run: Callable[[str], dict[str, Any]], again: bool = False
) -> dict[str, dict[str, Any]]:
    """Rows by part, recorded and new. run: measures one part. results: replaced after every part; None: nothing is recorded."""
    made_with = {"device": device, "torch": importlib.metadata.version("torch")}
    rows = recorded(results, made_with)
    for name in names:
        if name in rows and "error" not in rows[name] and not again:
            print(f"{name}: has a result of {rows[name]['date']}", flush=True)
            continue
        began_s = time.monotonic()
        row = run(name)
        rows[name] = {
            **made_with,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "part_seconds": round(time.monotonic() - began_s, 1),
            **row,
        }
        print(json.dumps({name: rows[name]}), flush=True)
        if results is not None:
            write_json(results, described("gpu", {"rows": rows}))
    return rows


def recorded(results: Path | None, made_with: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The rows in `results` that were measured on the same device with the same torch."""
    if results is None or not results.exists():
        return {}
    rows = json.loads(results.read_text())["figures"]["rows"]
    return {name: row for name, row in rows.items() if all(row.get(key) == value for key, value in made_with.items())}


def measure(name: str) -> dict[str, Any]:
    """One part, in this process."""
    from benchmarks import gpu_inference, gpu_training

    function, arguments = PARTS[name]
    if function == "marked_tests":
        return marked_tests()
    return getattr(gpu_training if hasattr(gpu_training, function) else gpu_inference, function)(**arguments)


def marked_tests() -> dict[str, Any]:
    """The tests with the mark `gpu`: how many passed, and the names of those that did not."""
    if device_name() is None:
        return {"passed": 0, "skipped": "there is no CUDA device"}
    import pytest

    seen = _Outcomes()
    code = pytest.main(["-m", "gpu", "-p", "no:cacheprovider", str(PROJECT / "tests")], plugins=[seen])
    failed = sorted(seen.names["failed"])
    row = {"passed": len(seen.names["passed"]), "failed": failed, "skipped": len(seen.names["skipped"])}
    if code == 0 and row["passed"]:
        return row
    return {**row, "error": f"pytest ended with {int(code)}, {len(failed)} tests failed"}


class _Outcomes:
    """A plugin of pytest that keeps the names of tests by outcome."""

    def __init__(self) -> None:
        self.names: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.names[report.outcome].add(report.nodeid)


def in_a_process(name: str, seconds: float = PART_SECONDS, command: Collection[str] = ()) -> dict[str, Any]:
    """A part's row from a process of its own, which ends with this one. command: another way to run the part."""
    set_torch_environment()
    watched, kept = os.pipe()
    process = subprocess.Popen(
        [*(command or (sys.executable, "-m", "benchmarks.gpu", "--part", name)), "--watched", str(watched)],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[watched],
        start_new_session=True,
        env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **os.environ},
    )
    os.close(watched)
    try:
        said, complained = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"not finished after {seconds:g} s"}
    finally:
        if process.poll() is None:  # with its own children: compilers, data loaders
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(kept)
    if process.returncode == 0:
        return json.loads(said.splitlines()[-1])
    lines = complained.strip().splitlines()
    return {"error": lines[-1][:500] if lines else f"exit code {process.returncode}"}


def device_name() -> str | None:
    """The CUDA device's name, asked in a process of its own, because asking takes memory of the device; None without one."""
    asked = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    return done.stdout.strip() or None


def _end_with_the_other_side_of(pipe: int) -> None:
    """Ends this process when the process with the pipe's other side is gone, so that nothing stays on the device."""

    def wait() -> None:
        os.read(pipe, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
