"""What takes minutes to make is kept for the next run of the tests, for as long as nothing changes that it is made from.

    folder = kept(tmp_path_factory, "toy", digest, make)     # make(folder) fills it where no earlier run left one

A kept folder lies in the machine's temporary folder, one for each checkout and name. It is made anew after a change of
`digest`, after a run of tests that failed, and after `make clean`. Tests that write work on a copy.
"""

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import TextIO

import pytest

from resources.digests.code import PACKAGES
from tests.command import PROJECT
from tests.once import made_once

CODE = (*PACKAGES, "constraints.txt", "pyproject.toml")
_in_use: list[TextIO] = []
"""Held until this process ends, so that no other run of tests removes what this one reads."""


def kept_folder() -> Path:
    """Where this checkout's kept folders are."""
    checkout = hashlib.sha256(str(PROJECT).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"millrace-tests-{os.getuid()}-{checkout}"


def digest_of_code(*more: str) -> str:
    """sha256 over all code of the project, the environment, the day, and `more` files; paths relative to the project."""
    found = hashlib.sha256(repr((sys.version, sys.prefix, str(date.today()))).encode())
    for path in sorted(_files([*CODE, *more])):
        found.update(f"{path.relative_to(PROJECT)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def _files(names: Iterable[str]) -> set[Path]:
    places = [PROJECT / name for name in names]
    files = {file for place in places for file in ([place] if place.is_file() else place.rglob("*")) if file.is_file()}
    return {file for file in files if "__pycache__" not in file.parts}


def kept(tmp_path_factory: pytest.TempPathFactory, name: str, digest: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` filled, in this run of tests or in an earlier one."""
    root = kept_folder()
    root.mkdir(mode=0o700, exist_ok=True)
    made = root / f"{name}.made-from"
    with (root / f"{name}.lock").open("w") as making:
        fcntl.flock(making, fcntl.LOCK_EX)
        in_use = (root / f"{name}.in-use").open("w")
        made_from, folder = made.read_text().split("\n") if made.exists() else ("", "")
        if made_from != digest:
            try:
                fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another run of tests reads one that was made from other code
                in_use.close()
                return made_once(tmp_path_factory, name, make)
            made.unlink(missing_ok=True)
            for old in root.glob(f"{name}-*"):
                shutil.rmtree(old, ignore_errors=True)
            folder = tempfile.mkdtemp(prefix=f"{name}-", dir=root)  # a new name: a stopped run may still write to the old one
            make(Path(folder))
            made.write_text(f"{digest}\n{folder}")
        fcntl.flock(in_use, fcntl.LOCK_SH)
        _in_use.append(in_use)
    return Path(folder)


def forget_kept_folders(exitstatus: int) -> None:
    """Lets the next run of the tests make everything anew where a test of this run failed: it may have left anything there."""
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        for made_from in kept_folder().glob("*.made-from"):
            made_from.unlink(missing_ok=True)
