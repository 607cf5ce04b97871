"""The lock that allows one ingest at a time on a lake: an ingest reads the ledger first and writes it last.

    with ingesting(lake): ...             # waits while another process ingests, and logs which one

A kernel lock on `<lake>/.ingesting`: it ends with its process, so a killed run never blocks a lake. The file names the holder's
process and host.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from model_ops.files import lock, try_lock
from resources.lake import LakeLayout
from resources.launching import relay


@contextmanager
def ingesting(lake: LakeLayout) -> Iterator[None]:
    """Holds the lake's ingest lock; of a lake in a bucket, on all machines."""

    def waiting(holder: str) -> None:
        message = f"waiting: {holder} is ingesting into {lake.place}"
        logging.getLogger(__name__).warning(message)
        relay({"event": "note", "message": message})

    with (lake.root / ".ingesting").open("a+") as file:
        if not try_lock(file):
            file.seek(0)
            waiting(file.read().strip() or "another process")
            lock(file)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        with lake.mirror.ingesting(waiting):
            yield
