"""What only a CUDA device can show, within an overall deadline: ceilings of the device, attention, tests with the mark `gpu`,
then speed and memory of training and inference at 8B.

    python -m benchmarks.gpu --seconds 600 --out DIR          # a bare machine: Python, torch, transformers; no network, no make
    python -m benchmarks.gpu --seconds 600 --out DIR --parts ceilings,lora
    python -m benchmarks.gpu --seconds 600 --out DIR --rehearse     # toys on the CPU: do all parts run, each within its share?
    python -m benchmarks.gpu_wheels benchmarks/wheels         # before, with a network: the packages that such a machine lacks
    make gpu                                                  # in a checkout with its environment; AGAIN=1 measures all again

Every part is a process of its own with a share of the time (`PARTS`). Each row is appended to DIR/rows.jsonl and flushed to the
disk as soon as it is measured, so what a killed run had found is there, and the same command goes on with the parts that had
not ended. DIR/gpu.json is the same as one file, for benchmarks/results. A part that cannot run is a row with "left_out" and the
reason, and the next part begins: no device, a driver that is too old, a package that is missing, too little memory (with the
planner's figure), no time left. A part that fails is a row with "error". The command ends with 1 after either, unless a part
was left out for lack of time or memory.
"""

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.record import described, version_of
from model_ops.machine.process import set_torch_environment

PROJECT = Path(__file__).resolve().parent.parent
WHEELS = Path(__file__).with_name("wheels")
RESERVE_SECONDS = 3.0
"""Of the deadline, for the end of a part that is stopped and for the last file."""
LEAST_SECONDS = 8.0
"""A part with less time is left out: torch and transformers take as long to load."""
NEEDED = (
    ("pydantic", "pydantic"),
    ("pydantic_core", "pydantic-core"),
    ("annotated_types", "annotated-types"),
    ("typing_inspection", "typing-inspection"),
    ("zstandard", "zstandard"),
    ("torch", "torch"),
    ("transformers", "transformers"),
    ("numba", "numba"),
    ("jaxtyping", "jaxtyping"),
    ("psutil", "psutil"),
    ("pyarrow", "pyarrow"),
    ("xxhash", "xxhash"),
    ("pytest", "pytest"),
    ("pytest_timeout", "pytest-timeout"),
    ("hypothesis", "hypothesis"),
)
"""(module, package) that the parts import."""
FOR_TESTS = {"pytest", "pytest-timeout", "hypothesis", "zstandard"}
"""Packages that only the part `tests` imports."""
GPU_TESTS = (
    "tests/model_ops/cuda/test_on_a_device.py",
    "tests/model_ops/models/test_varlen_attention.py",
    "tests/model_ops/models/test_attention.py",
    "tests/model_ops/speculators/test_draft_attention.py",
    "tests/model_ops/quantization/test_quantized.py",
    "tests/model_ops/training/test_on_cuda.py",
    "tests/model_ops/training/test_checkpoint.py",
)
"""Files with tests that need a device: pytest collects no other, whose imports a bare machine lacks."""


@dataclass(frozen=True)
class Part:
    """A function of benchmarks.gpu_training, gpu_inference or this module that yields rows."""

    function: str
    seconds: float
    """Most of 600 seconds that it may take; of another deadline, the same share."""
    arguments: dict[str, Any] = field(default_factory=dict)


PARTS = {
    "ceilings": Part("ceilings", 40),
    "attention": Part("attention", 40),
    "tests": Part("marked_tests", 90),
    "lora": Part("lora", 150),
    "eagle3": Part("eagle3", 70),
    "decoding": Part("decoding", 90),
    "int8-fp8": Part("rounded_decoding", 80),
    "lora-32k": Part("sft", 90, {"method": "lora", "length": 32_768}),
    "evaluation": Part("evaluation", 60),
    "deterministic": Part("deterministic", 80),
    "full-4k": Part("sft", 120, {"method": "full", "length": 4_096}),
    "lora-131k": Part("sft", 400, {"method": "lora", "length": 131_072}),
}
"""In the order of what they tell; the last ones take a longer deadline."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="overall deadline (600)")
    parser.add_argument(
        "--out", type=Path, default=PROJECT / "build" / "gpu", help="directory for rows.jsonl, gpu.json, log.txt"
    )
    parser.add_argument("--parts", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="directory with wheels of packages that are missing here")
    parser.add_argument("--again", action="store_true", help="measure parts again that have ended")
    parser.add_argument("--rehearse", action="store_true", help="run the parts as toys on the CPU; their rows say so")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--watched", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        if given.watched is not None:
            _end_with_the_other_side_of(given.watched)
        for row in measure(given.part):
            print(json.dumps(row), flush=True)
        return 0
    names = given.parts.split(",") if given.parts else list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]}; parts are {', '.join(PARTS)}")
    deadline_s = time.monotonic() + given.seconds
    given.out.mkdir(parents=True, exist_ok=True)
    found = Findings(given.out)
    set_torch_environment()
    site = unpacked(given.wheels, given.out / "site")
    sys.path[:0] = [] if site is None else [str(site)]
    before = len(found.rows)
    device, problem = (None, "a rehearsal takes none") if given.rehearse else device_name()
    made_with = {"device": device or "cpu", "torch": version_of("torch")}
    missing = missing_packages()
    row = {"part": "environment", **made_with, **environment(site), "missing": missing}
    found.add({**row, **({"rehearsal": True} if given.rehearse else {})})
    reasons = left_out(names, missing, None if device or given.rehearse else problem)
    run = part_runner(site, given.out / "log.txt", given.rehearse)
    run_parts(names, found, made_with, deadline_s, given.seconds / 600, run, reasons, given.again)
    failed = sorted({row["part"] for row in found.rows[before:] if "error" in row} | set(reasons))
    if failed:
        print(f"failed or left out: {', '.join(failed)}; see {given.out / 'log.txt'}", file=sys.stderr)
    return int(bool(failed))


class Findings:
    """Rows of this run and of earlier ones with the same directory."""

    def __init__(self, folder: Path):
        self.folder, self.file, self.rows = folder, folder / "rows.jsonl", []
        for line in self.file.read_text().splitlines() if self.file.exists() else []:
            try:
                self.rows.append(json.loads(line))
            except ValueError:  # the line at which an earlier run was killed
                continue

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row, flushed to the disk before this returns."""
        row = {**row, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        self.rows.append(row)
        with self.file.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(json.dumps(row), flush=True)

    def ended(self, part: str, made_with: dict[str, Any]) -> bool:
        """Whether an earlier run finished the part on the same device with the same torch."""
        wanted = {"part": part, "ended": True, **made_with}
        return any(wanted.items() <= row.items() for row in self.rows)

    def write(self) -> None:
        """Replaces gpu.json."""
        temporary = self.folder / ".gpu.json"
        temporary.write_text(json.dumps(described("gpu", {"rows": self.rows}), indent=1) + "\n")
        temporary.replace(self.folder / "gpu.json")


def run_parts(
    names: Sequence[str],
    found: Findings,
    made_with: dict[str, Any],
    deadline_s: float,
    share: float,
    run: Callable[[str, float, Callable[[dict[str, Any]], None]], str | None],
    reasons: Mapping[str, str] = MappingProxyType({}),
    again: bool = False,
) -> None:
    """Runs parts until the deadline (of time.monotonic). share: of each part's seconds. run: (part, seconds, what takes a row)
    -> why it failed, or None. reasons: why some of the parts cannot run."""
    for name in names:
        if name in reasons:
            found.add({"part": name, "left_out": reasons[name]})
            continue
        if not again and found.ended(name, made_with):
            print(f"{name}: ended before", flush=True)
            continue
        left = deadline_s - time.monotonic() - RESERVE_SECONDS
        if left < LEAST_SECONDS * min(1.0, share):
            found.add({"part": name, "left_out": f"{max(0.0, left):.0f} s of the deadline were left"})
            continue
        seconds = min(left, PARTS[name].seconds * share)
        began_s, began_processor_s = time.monotonic(), _processor_seconds()
        error = run(name, seconds, lambda row, name=name: found.add({"part": name, **row}))
        took = {
            "part_seconds": round(time.monotonic() - began_s, 1),
            "processor_seconds": round(_processor_seconds() - began_processor_s, 1),
        }
        found.add({"part": name, **({"ended": True} if error is None else {"error": error}), **took, **made_with})
        found.write()
    found.write()


def _processor_seconds() -> float:
    """Of the processes that this one waited for: what a part takes on a machine that has other work."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def environment(site: Path | None) -> dict[str, Any]:
    """What the machine has, besides device and torch."""
    return {
        "transformers": version_of("transformers"),
        "triton": version_of("triton"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "wheels": None if site is None else sorted(path.name for path in site.iterdir() if path.suffix != ".dist-info"),
    }


def missing_packages() -> list[str]:
    """Packages that this Python does not find."""
    return [package for module, package in NEEDED if find_spec(module) is None]


def left_out(names: Sequence[str], missing: Sequence[str], no_device: str | None) -> dict[str, str]:
    """Why parts cannot run: no device, or a package that they import and that is missing."""
    remedy = "fetch its wheel with python -m benchmarks.gpu_wheels DIR, and carry it: --wheels DIR"
    reasons = {}
    for name in names:
        lacking = [package for package in missing if name == "tests" or package not in FOR_TESTS]
        if no_device is not None:
            reasons[name] = f"{no_device}; --rehearse runs toys on the CPU"
        elif lacking:
            reasons[name] = f"{', '.join(lacking)} missing here: {remedy}"
    return reasons


def unpacked(wheels: Path, site: Path) -> Path | None:
    """A directory with the packages of those wheels that this Python loads and that it lacks; None if there are none."""
    missing = {package.replace("-", "_") for module, package in NEEDED if find_spec(module) is None}
    abi = f"cp{sys.version_info.major}{sys.version_info.minor}"
    for wheel in sorted(wheels.glob("*.whl")) if missing else []:
        name, _, python, its_abi, _ = wheel.stem.rsplit("-", 4) if wheel.stem.count("-") == 4 else ("", "", "", "", "")
        if name.lower() in missing and (its_abi == abi or (its_abi == "none" and "py3" in python)):
            with zipfile.ZipFile(wheel) as files:
                files.extractall(site)
    return site if site.is_dir() else None


def measure(name: str) -> Iterator[dict[str, Any]]:
    """The rows of one part, in this process."""
    from benchmarks import gpu_inference, gpu_training

    part = PARTS[name]
    if part.function == "marked_tests":
        yield from marked_tests()
        return
    module = gpu_training if hasattr(gpu_training, part.function) else gpu_inference
    yield from getattr(module, part.function)(**part.arguments)


def marked_tests() -> Iterator[dict[str, Any]]:
    """The tests with the mark `gpu`: one row for each that fails, and one with their number."""
    import pytest
    import torch

    seen = _Outcomes()
    options = ["-m", "gpu", "-p", "no:cacheprovider", "-p", "no:randomly", "--timeout", "60", "-q", "--durations", "10"]
    code = pytest.main([*options, *(str(PROJECT / name) for name in GPU_TESTS)], plugins=[seen])
    for name, text in sorted(seen.failures.items()):
        yield {"failed": name, "says": text[-1500:]}
    row = {"passed": seen.counts["passed"], "failed": len(seen.failures), "skipped": seen.counts["skipped"]}
    if not torch.cuda.is_available():
        yield {**row, "toy": True, "collected": int(code) in (0, 5)}
    elif code != 0 or not row["passed"]:
        yield {**row, "error": f"pytest ended with {int(code)}"}
    else:
        yield row


class _Outcomes:
    """A plugin of pytest that counts outcomes and keeps what failures say."""

    def __init__(self) -> None:
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self.failures: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
        if report.outcome == "failed":
            self.failures[report.nodeid] = str(report.longrepr)


def part_runner(
    site: Path | None, log: Path, rehearse: bool
) -> Callable[[str, float, Callable[[dict[str, Any]], None]], str | None]:
    """Runs a part in a process that ends with this one; its complaints are appended to the log. rehearse: it sees no device."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if rehearse else {}

    def run(name: str, seconds: float, take: Callable[[dict[str, Any]], None]) -> str | None:
        command = [sys.executable, "-m", "benchmarks.gpu", "--part", name]
        with log.open("a") as complaints:
            complaints.write(f"== {name}\n")
            complaints.flush()
            return in_a_process(command, seconds, take, complaints, site, hidden)

    return run


def in_a_process(
    command: Sequence[str],
    seconds: float,
    take: Callable[[dict[str, Any]], None],
    complaints: Any,
    site: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> str | None:
    """Hands each row that the command prints to `take`, as it comes. Returns why it failed, or None."""
    watched, held = os.pipe()
    began = complaints.tell()
    paths = [str(each) for each in (site, PROJECT) if each is not None]
    process = subprocess.Popen(
        [*command, "--watched", str(watched)],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=complaints,
        text=True,
        pass_fds=[watched],
        start_new_session=True,
        env={
            **os.environ,
            **environment,
            "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
        },
    )
    os.close(watched)
    late = threading.Event()

    def stop() -> None:
        late.set()
        _end(process)

    timer = threading.Timer(seconds, stop)
    timer.start()
    try:
        for line in process.stdout:
            try:
                row = json.loads(line)
            except ValueError:  # a library's own line
                continue
            if isinstance(row, dict):
                take(row)
        code = process.wait()
    finally:
        timer.cancel()
        _end(process)
        os.close(held)
    if late.is_set():
        return f"not finished after {seconds:.0f} s; rows before are kept"
    if code == 0:
        return None
    complaints.flush()
    lines = Path(complaints.name).read_text(errors="replace")[began:].strip().splitlines()
    return lines[-1][:500] if lines else f"exit code {code}"


def _end(process: subprocess.Popen) -> None:
    """Ends a part with its own children: compilers, data loaders."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def device_name() -> tuple[str | None, str]:
    """(the CUDA device's name or None, why there is none), asked in a process of its own, because asking takes memory of the
    device."""
    asked = (
        "import warnings, torch; warnings.simplefilter('always'); there = torch.cuda.is_available(); "
        "print(torch.cuda.get_device_name() if there else '')"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    complaints = [line for line in done.stderr.strip().splitlines() if "CUDA" in line or "driver" in line or "Error" in line]
    problem = complaints[-1].strip()[:300] if complaints else "torch finds no CUDA device here"
    return (done.stdout.strip() or None, problem) if done.returncode == 0 else (None, problem)


def _end_with_the_other_side_of(pipe: int) -> None:
    """Ends this process when the process with the pipe's other side is gone, so that nothing stays on the device."""

    def wait() -> None:
        os.read(pipe, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
