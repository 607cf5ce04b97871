"""Who works on a lake: many runs at a time, or one erasure alone.

    with at_work(lake): ...        # a run, a sweep: waits while an erasure or a removal of old rows is at work
    with alone(lake, "forget"): ...          # raises LakeInUse at once if anything is at work

A kernel lock on `<lake>/.in_use`: it ends with its process, so a killed run never blocks a lake. On a lake in a bucket also a
lease there, for other machines (stores/mirror/leases.py); the mirror is brought up to date first, and what was written is
published last.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from model_ops.file_locks import lock, try_lock
from resources.lake import Lake, LakeError
from resources.unpublished import drop_before_erasure
from stores.mirror.bucket import Changed
from stores.mirror.leases import Taken

LOCK = ".in_use"


class LakeInUse(LakeError):
    """A run holds the lake."""


@contextmanager
def at_work(lake: Lake) -> Iterator[None]:
    """Shares the lake with other runs."""
    def waiting(holder: str = "") -> None:
        by = f" by {holder}" if holder else ""
        logging.getLogger(__name__).warning("waiting: rows are being erased or removed from %s%s", lake.place, by)

    with ExitStack() as stack:
        file = stack.enter_context((lake.root / LOCK).open("a"))
        if not try_lock(file, shared=True):
            waiting()
            lock(file, shared=True)
        stack.enter_context(lake.mirror.at_work(waiting))
        with _published(lake):
            yield


@contextmanager
def alone(lake: Lake, what: str) -> Iterator[None]:
    """Holds the lake alone. what: the command, for the sentence of LakeInUse."""
    with ExitStack() as stack:
        file = stack.enter_context((lake.root / LOCK).open("a"))
        try:
            if not try_lock(file):
                raise Taken
            stack.enter_context(lake.mirror.alone())
        except Taken as error:
            by = f" ({error})" if str(error) else ""
            raise LakeInUse(f"a run is at work on {lake.place}{by}: wait until `millrace status` shows none, or stop it, and "
                            f"then {what} again") from error
        with _published(lake, is_alone=True):
            yield


@contextmanager
def _published(lake: Lake, is_alone: bool = False) -> Iterator[None]:
    """Publishes what the block wrote, also if it fails: finished artefacts and paid answers count. is_alone: the block works on
    every version of the lake."""
    lake.mirror.pull(over_drafts=is_alone)
    drop_before_erasure(lake)
    if is_alone:
        lake.mirror.require_whole()
    try:
        yield
    finally:
        try:
            lake.mirror.push()
        except Changed as error:
            raise LakeError(f"another machine changed {error} of {lake.place} meanwhile: what this one wrote there was not "
                            "kept; run it again") from error
