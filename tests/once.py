"""What several tests need and takes long to make is made once in a run of the tests, by whichever process needs it first.

    folder = made_once(tmp_path_factory, "toy", make)     # make(folder) fills it, for the first who asks

Processes of pytest-xdist share it, so nothing may be written there; who has to write works on a copy.
"""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` filled. Where it failed, the next who asks starts again from an empty folder."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # the folder of the whole run
    folder, finished = root / f"once-{name}", root / f"once-{name}.finished"
    with (root / f"once-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go of by the kernel where its holder dies
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder
