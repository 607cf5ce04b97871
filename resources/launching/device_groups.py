"""The accelerators that workers of this machine share: MILLRACE_DEVICES, groups of CUDA device numbers.

Without it, one worker at a time sees all devices. Dagster assigns no devices to steps, so a worker takes the first group that
no other has, by a kernel lock that ends with the process that took it.
"""

import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from model_ops.files import try_lock
from model_ops.jobs import Misuse

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
