"""Who works on a lake: many runs at a time, or one erasure alone.

    with at_work(lake): ...        # a run, a sweep: waits while an erasure or a removal of old rows is at work
    with alone(lake, "forget"): ...          # raises LakeInUse at once if anything is at work

A kernel lock on `<lake>/.in_use`: it ends with its process, so a killed run never blocks a lake.
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from resources.lake import Lake, LakeError

LOCK = ".in_use"


class LakeInUse(LakeError):
    """A run holds the lake."""


@contextmanager
def at_work(lake: Lake) -> Iterator[None]:
    """Shares the lake with other runs."""
    with (lake.root / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            logging.getLogger(__name__).warning("waiting: rows are being erased or removed from %s", lake.root)
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextmanager
def alone(lake: Lake, what: str) -> Iterator[None]:
    """Holds the lake alone. what: the command, for the sentence of LakeInUse."""
    with (lake.root / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LakeInUse(f"a run is at work on {lake.root}: wait until `millrace status` shows none, or stop it, and then "
                            f"{what} again") from error
        yield
