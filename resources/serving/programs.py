"""Which inference server runs a release, and the command line that starts it.

vLLM and SGLang are started by the release's own script, so what serves is what was signed: its flags, its drafting. The script
finds its program on PATH, so a folder with the program that was chosen comes first there. vLLM is told which parser reads the
target's tool calls, if its script does not. transformers has no script: it serves the target alone."""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from model_ops.files import template_files
from model_ops.jobs import CheckFailed, Misuse
from model_ops.serving import MODULES, has_package, server_environment, tool_words
from resources.lake import LakeLayout
from resources.releases import read_release

ServedBy = Literal["vllm", "sglang", "transformers"]
PACKAGES: dict[ServedBy, tuple[str, ...]] = {
    "vllm": ("vllm",),
    "sglang": ("sglang",),
    "transformers": ("transformers", "fastapi", "openai", "uvicorn"),
}
"""What an environment must have to run each server, in order of preference."""
TRANSFORMERS = ("-m", "transformers.cli.transformers", "serve")


class ServeError(CheckFailed):
    """A release cannot be served; the message says why, and what to change."""


class UnknownServedError(Misuse, ServeError):
    """What was asked for does not exist: a program, a server in it, a workload."""


@dataclass(frozen=True)
class Program:
    """A server's program. words: what starts it, without the server's own command (`serve`)."""

    kind: ServedBy
    words: tuple[str, ...]


@dataclass(frozen=True)
class ServerCommand:
    """words: the command line. folder: where it is started; None: here."""

    words: list[str]
    folder: Path | None
    environment: Mapping[str, str]


def find_program(kind: ServedBy | None, given: str | None) -> Program:
    """The first server that is installed. kind: this one and no other. given: an interpreter whose environment has it, or the
    command `vllm`; None: this environment, and then vllm on PATH. Raises UnknownServedError if there is none."""
    kinds = [kind] if kind else list(PACKAGES)
    if given is not None:
        return _given(kinds, given)
    for each in kinds:
        if all(has_package(sys.executable, package) for package in PACKAGES[each]):
            return _of_interpreter(each, sys.executable)
        if each == "vllm" and (command := shutil.which("vllm")) is not None:
            return Program("vllm", (command,))
    raise UnknownServedError(
        f"no inference server is installed here ({_any_of(kinds)}): {_install(kinds)}, or name the "
        "interpreter of an environment that has one with --program; `make serve-env` in a checkout makes "
        "one with vLLM for CPUs. `millrace chat` answers without a server"
    )


def _given(kinds: list[ServedBy], given: str) -> Program:
    path = shutil.which(str(Path(given).expanduser()))
    if path is None:
        raise UnknownServedError(f"--program {given}: there is no such program")
    path = str(Path.cwd() / path)  # not resolved: the links of a virtual environment must stay
    if Path(path).name == "vllm":
        if "vllm" not in kinds:
            raise UnknownServedError(f"--program {given} is vLLM, and --server asks for {kinds[0]}: leave one of them out")
        return Program("vllm", (path,))
    for each in kinds:
        if all(has_package(path, package) for package in PACKAGES[each]):
            return _of_interpreter(each, path)
    raise UnknownServedError(
        f"--program {given} runs no Python that has {_any_of(kinds)}: name the interpreter of an "
        "environment in which one of them is installed, or the command vllm"
    )


def _of_interpreter(kind: ServedBy, python: str) -> Program:
    return Program(kind, (python, *(TRANSFORMERS if kind == "transformers" else ("-m", MODULES[kind][0]))))


def _install(kinds: list[ServedBy]) -> str:
    """The line that installs the first of these servers, in an environment of its own: it pins its own torch."""
    package = "transformers[serving]" if kinds[0] == "transformers" else kinds[0]
    return (
        f"install one with `python -m venv serve-env && serve-env/bin/pip install '{package}'` and give --program "
        "serve-env/bin/python"
    )


def _any_of(kinds: list[ServedBy]) -> str:
    return " or ".join("transformers[serving]" if kind == "transformers" else kind for kind in kinds)


@contextmanager
def command_of(program: Program, lake: LakeLayout, directory: Path) -> Iterator[ServerCommand]:
    """The command that serves the release, for as long as the block runs. Raises ServeError for a release without a script."""
    with tempfile.TemporaryDirectory(prefix="millrace-serve-") as home:
        folder, environment = Path(home), server_environment()
        if program.kind == "transformers":
            release = read_release(directory)
            (folder / release.workload).symlink_to(lake.root / release.target.path)  # requests name it by the workload
            yield ServerCommand([*program.words, release.workload], folder, environment)
            return
        script = directory / f"serve-{program.kind}.sh"
        if not script.is_file():
            raise ServeError(f"release {directory.name} has no {script.name}: serve it with another --server")
        called = "vllm" if program.kind == "vllm" else "python"
        words = program.words if program.kind == "vllm" else program.words[:1]  # that script names the module itself
        stand_in = folder / called
        stand_in.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        stand_in.chmod(0o755)
        path = os.pathsep.join([home, environment.get("PATH", os.defpath)])
        command = ["bash", str(script), *_tool_words(program, lake, directory, script)]
        yield ServerCommand(command, None, {**environment, "PATH": path})


def _tool_words(program: Program, lake: LakeLayout, directory: Path, script: Path) -> list[str]:
    """vLLM's parser of tool calls for the target's chat template, where the script names none."""
    if program.kind != "vllm" or "--tool-call-parser" in script.read_text(encoding="utf-8"):
        return []
    return tool_words(template_files.template_text(lake.root / read_release(directory).target.path))
