"""Which program starts a server.

    program_of("vllm", python=None)                        # [sys.executable, "-m", "vllm...", "serve"], or the command vllm
    program_of("vllm", python="./venvs/vllm/bin/python")   # of another environment
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

from model_ops.errors import ModelError
from model_ops.serving.service import ServerKind

MODULES: dict[ServerKind, tuple[str, ...]] = {
    "vllm": ("vllm.entrypoints.cli.main", "serve"), "sglang": ("sglang.launch_server",)}
LOOKS_FOR_S = 60.0
NOT_PASSED_ON = ("PYTHONPATH", "PYTHONSAFEPATH", "VLLM_API_KEY")
"""Variables of this process that a server of another environment does not get: it would import this project's packages, or ask
for a key that nobody sends."""


def program_of(server: ServerKind, python: str | None) -> list[str]:
    """The words before a server's own arguments. python: interpreter of an environment that has the server; None: this
    environment, or else the server's command on PATH.

    Raises ModelError if the server is in neither, with what to do.
    """
    module = MODULES[server]
    if python is not None:
        if not has_package(python, server):
            raise ModelError(f"evaluation.server.python: {python} runs no Python that has {server}: name the interpreter of an "
                             f"environment in which {server} is installed")
        return [python, "-m", *module]
    if importlib.util.find_spec(server) is not None:
        return [sys.executable, "-m", *module]
    if server == "vllm" and (command := shutil.which(server)) is not None:
        return [command, *module[1:]]
    raise ModelError(f"evaluation.server: {server} is not installed in this environment"
                     f"{' and not on PATH' if server == 'vllm' else ''}: name the interpreter of one that has it in "
                     "evaluation.server.python, or leave evaluation.server out")


def server_environment() -> dict[str, str]:
    """This process's environment for a server: weights are on this machine, so nothing is fetched or reported."""
    found = {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}
    return {**found, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def has_package(python: str, package: str) -> bool:
    """Whether `python` is an interpreter that can import the package. It is looked for, not imported."""
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    try:
        return subprocess.run([python, "-c", look], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, timeout=LOOKS_FOR_S, env=server_environment()).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
