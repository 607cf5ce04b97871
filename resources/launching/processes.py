"""Starts a module of this project as a process of its own, from a checkout or a wheel, and recognises a process later.

The child keeps the user's current folder, so relative paths in its environment mean what they meant to the user. That
folder is not on the child's module path (`python -P`): a file sql.py or a folder assets/ there hides nothing.
"""

import os
import site
import sys

import psutil

from resources.digests import PROJECT


def python_module(module: str, *words: str) -> list[str]:
    """The command line of `python -m module words`, safe from files in the current folder."""
    return [sys.executable, "-P", "-m", module, *words]


def child_environment(**more: str) -> dict[str, str]:
    """This process's environment for a child that imports the same project files, plus `more`."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1", **more}
    if str(PROJECT) not in {*site.getsitepackages(), site.getusersitepackages()}:  # a checkout need not be installed
        environment["PYTHONPATH"] = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return environment


def this_process() -> str:
    """The stamp of this process."""
    return f"{os.getpid()}@{psutil.Process().create_time():.2f}"


def stamp_of(pid: int) -> str:
    """The stamp of another process; "" if it has ended."""
    try:
        return f"{pid}@{psutil.Process(pid).create_time():.2f}"
    except psutil.Error:
        return ""


def has_run_since(pid: int, at: float) -> bool:
    """Whether a process that ran at this time (seconds since 1970) still runs. A zombie is not running."""
    try:
        process = psutil.Process(pid)
        return process.create_time() <= at + 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_same_process(stamp: str) -> bool:
    """Whether the process of a stamp is running. A zombie is not running."""
    pid, _, started = stamp.partition("@")
    try:
        process = psutil.Process(int(pid))
        return abs(process.create_time() - float(started)) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError):
        return False
