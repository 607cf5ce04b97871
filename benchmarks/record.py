"""Records a benchmark: prints its figures as the last line of output, and writes the results file.

record("demo", {"seconds": ...})
"""

import importlib.metadata
import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_ops.files.atomic_files import write_json

RESULTS = Path(__file__).with_name("results")
PACKAGES = ("dagster", "deltalake", "duckdb", "pyarrow", "torch", "transformers")


def record(name: str, figures: dict[str, Any], keep: bool = True) -> None:
    """Writes benchmarks/results/NAME.json (unless keep is False, for quick runs) and prints the figures."""
    if keep:
        write_json(RESULTS / f"{name}.json", described(name, figures))
    print(json.dumps(figures))


def described(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    """The content of a results file: the figures with command, date, hardware and versions."""
    return {
        "benchmark": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(name),
        "hardware": {"cpu": _cpu(), "cores": os.cpu_count(), "memory_gib": _memory_gib(), "system": platform.platform()},
        "versions": {package: found for package in PACKAGES if (found := version_of(package)) is not None},
        "python": platform.python_version(),
        "figures": figures,
    }


def version_of(package: str) -> str | None:
    """The installed version; None where a machine lacks the package, which one for GPUs may."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def command(name: str) -> str:
    """The command line of this process, as it is recorded."""
    return " ".join(["python", "-m", f"benchmarks.{name}", *map(_told, sys.argv[1:])])


def _told(word: str) -> str:
    """An argument without local paths, for the recorded command."""
    return "DIR" if Path(word).is_absolute() else word


def _cpu() -> str:
    found = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    instructions = [flag for flag in ("avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if flag in found.get("flags", "")]
    return f"{found.get('model name', platform.processor())} ({', '.join(instructions) or 'no AVX-512'})"


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
