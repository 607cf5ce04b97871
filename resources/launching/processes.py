"""Starts a module of this project as a process of its own, from a checkout or a wheel, and recognises a process later.

The child keeps the user's current folder, so relative paths in its environment mean what they meant to the user. That
folder is not on the child's module path (`python -P`): a file sql.py or a folder assets/ there hides nothing."""

import os
import re
import site
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from model_ops.files import try_lock
from model_ops.jobs import Misuse
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


VARIABLE, VISIBLE = "MILLRACE_DEVICES", "CUDA_VISIBLE_DEVICES"
WAITS_S = 0.5


class DevicesError(Misuse):
    """MILLRACE_DEVICES cannot be used; the message says what it should look like."""


def devices() -> list[str]:
    """The groups, each as CUDA_VISIBLE_DEVICES takes it; none if the variable is not set. Raises DevicesError."""
    given = os.environ.get(VARIABLE, "").replace(" ", "")
    if not given:
        return []
    groups = [group for group in given.split(";") if group]
    numbers = [number for group in groups for number in group.split(",")]
    if not groups or not all(re.fullmatch(r"\d+|(GPU|MIG)-[\w-]+", number) for number in numbers):
        raise DevicesError(f"{VARIABLE}={given!r}: name groups of CUDA devices, such as 0;1 for two workers with one each")
    if len(set(numbers)) != len(numbers):
        raise DevicesError(f"{VARIABLE}={given!r} names a device twice: two workers would share its memory")
    return groups


@contextmanager
def leased_devices() -> Iterator[bool]:
    """Gives this process a group of devices to itself until the block ends; yields whether there are any to share.
    Waits while all groups are taken."""
    groups = devices()
    if not groups:
        yield False
        return
    folder = Path(tempfile.gettempdir()) / f"millrace-devices-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        group = _taken(groups, folder, stack)
        before = os.environ.get(VISIBLE)
        os.environ[VISIBLE] = group
        try:
            yield True
        finally:
            os.environ.pop(VISIBLE)
            if before is not None:
                os.environ[VISIBLE] = before


def _taken(groups: list[str], folder: Path, stack: ExitStack) -> str:
    """The first free group of devices; it is locked until the stack is closed."""
    while True:
        for group in groups:
            file = (folder / group.replace(",", "_")).open("w")
            if try_lock(file):
                stack.enter_context(file)
                return group
            file.close()
        time.sleep(WAITS_S)


CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def killed_sentence(who: str, signal_name: str) -> str:
    """A sentence: a process was killed, the usual reason, and what to do."""
    reason = ", as the system does when memory runs out" if signal_name == "SIGKILL" else ""
    return f"{who} was killed ({signal_name}) before its job was done{reason}; checkpoints are kept, run again to continue"


def memory_sentence(peak_mb: float | None) -> str:
    """The peak memory and the limit, as text; empty without a measurement. peak_mb: in MiB."""
    return f" ({peak_mb / 1024:.1f} of {memory_limit() / 2**30:.1f} GiB memory were in use)" if peak_mb else ""


def memory_limit() -> int:
    """Bytes of memory that processes here may use: the container's limit, else the machine's memory."""
    machine = psutil.virtual_memory().total
    for file in CGROUP_LIMITS:
        try:
            return min(machine, int(file.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return machine
