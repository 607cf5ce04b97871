"""Leases in a bucket: who works on a lake, from any machine.

    with shared(bucket, "work"): ...                  # many at a time
    with exclusive(bucket, "work"): ...               # raises Taken while anybody works
    with exclusive(bucket, "ingest", wait=said): ...  # waits; said(sentence) is called once

A lease is an object that its holder writes again every RENEW_S seconds. One that was not written for EXPIRE_S seconds, by the
store's clock, belongs to a process that was killed, and counts no more. Both sides write their own lease first and look for the
other's then, so that of two at least one sees the other.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime

from stores.mirror.bucket import Bucket, Changed
from stores.s3 import S3Error

HOME = "leases"
RENEW_S, EXPIRE_S, LOOK_S = 15.0, 90.0, 1.0


class Taken(Exception):
    """Another process holds the lease; its text says which."""


@contextmanager
def shared(bucket: Bucket, name: str, wait: Callable[[str], None]) -> Iterator[None]:
    """Holds a lease beside others. Waits while somebody holds it alone; `wait` gets a sentence then."""
    said = False
    while True:
        with ExitStack() as stack:
            own = stack.enter_context(_held(bucket, f"{HOME}/{name}/{secrets.token_hex(8)}.json"))
            alone = _holder(bucket, f"{HOME}/{name}.json", own())
            if alone is None:
                yield
                return
        if not said:
            wait(alone)
            said = True
        time.sleep(LOOK_S)


@contextmanager
def exclusive(bucket: Bucket, name: str, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Holds a lease alone. Raises Taken while anybody else holds it; `wait`: waits instead, and gets a sentence first."""
    said = False
    while True:
        with ExitStack() as stack:
            try:
                own = stack.enter_context(_held(bucket, f"{HOME}/{name}.json"))
                other = next((holder for item in bucket.objects(f"{HOME}/{name}")
                              if (holder := _holder(bucket, item.key, own())) is not None), None)
                if other is None:
                    yield
                    return
            except Taken as error:
                other = str(error)
        if wait is None:
            raise Taken(other)
        if not said:
            wait(other)
            said = True
        time.sleep(LOOK_S)


@contextmanager
def _held(bucket: Bucket, path: str) -> Iterator[Callable[[], datetime]]:
    """Writes a lease and renews it until the block ends. Gives a function that tells when it was last written, by the store's
    clock. Raises Taken if another process holds this lease."""
    content = json.dumps({"host": socket.gethostname(), "process": os.getpid(), "lease": secrets.token_hex(8)}).encode()
    state = {"etag": _taken(bucket, path, content)}
    ended = threading.Event()

    def renew() -> None:
        number = 0
        while not ended.wait(RENEW_S):
            number += 1
            with suppress(S3Error, Changed):  # the next turn may succeed; a lease that was lost is not taken back
                state["etag"] = bucket.put(path, content + b" " * (number % 2), state["etag"])

    thread = threading.Thread(target=renew, name=f"lease {path}", daemon=True)
    thread.start()
    try:
        yield lambda: bucket.modified(path) or datetime.now(UTC)
    finally:
        ended.set()
        thread.join()
        found = bucket.get(path)
        if found is not None and found[1] == state["etag"]:
            bucket.delete([path])


def _taken(bucket: Bucket, path: str, content: bytes) -> str:
    """Creates a lease, or takes over one that has expired; returns its etag."""
    try:
        return bucket.put(path, content, None)
    except Changed:
        found = bucket.get(path)
        if found is None:
            return _taken(bucket, path, content)
        probe = f"{HOME}/.clock-{secrets.token_hex(8)}"
        bucket.put(probe, b"", None)
        try:
            now = bucket.modified(probe)
        finally:
            bucket.delete([probe])
        holder = _holder(bucket, path, now or datetime.now(UTC))
        if holder is not None:
            raise Taken(holder) from None
        try:
            return bucket.put(path, content, found[1])
        except Changed:
            raise Taken("another process") from None


def _holder(bucket: Bucket, path: str, now: datetime) -> str | None:
    """Who holds a lease at this time; None if it has expired or there is none."""
    written, found = bucket.modified(path), bucket.get(path)
    if written is None or found is None or (now - written).total_seconds() > EXPIRE_S:
        return None
    try:
        said = json.loads(found[0])
        return f"process {said['process']} on {said['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
