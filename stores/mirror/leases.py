"""Leases in a bucket: who works on a lake, from any machine. A lease is an object that its holder writes again every RENEW_S
seconds; one that was not written for EXPIRE_S seconds, by the store's clock, belongs to a process that was killed. Both sides
write their own lease first and look for the other's then, so that of two at least one sees the other. A holder that could not
write its lease in time has lost it for good, one turn before others may take it: from then on it must not write to the lake."""

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

from stores.lake_error import LakeError
from stores.mirror.bucket import Bucket, Conflict
from stores.s3 import S3Error

HOME = "leases"
RENEW_S, EXPIRE_S, LOOK_S = 15.0, 90.0, 1.0


_HELD: set[_Lease] = set()


class LeaseHeld(Exception):
    """Another process holds the lease; the message names it."""


class _Lease:
    """A lease that this process wrote. etag: as it wrote it last."""

    def __init__(self, bucket: Bucket, path: str, content: bytes):
        self.bucket, self.path, self.process = bucket, path, os.getpid()
        self._content, self._number, self._lost = content, 0, False
        self._sent_at = _seconds()
        self.etag = _taken(bucket, path, content)

    @property
    def is_lost(self) -> bool:
        """Whether others may hold it by now. A lost lease is not taken back: others may have worked meanwhile."""
        self._lost = self._lost or _seconds() - self._sent_at > EXPIRE_S - RENEW_S
        return self._lost

    def renew(self) -> None:
        """Writes it again. If the store does not answer, the next turn may succeed."""
        if self.is_lost:
            return
        sent_at, self._number = _seconds(), self._number + 1
        try:
            self.etag = self.bucket.put(self.path, self._content + b" " * (self._number % 2), self.etag)
        except Conflict:
            self._lost = True
        except S3Error:
            return
        if not self.is_lost:
            self._sent_at = sent_at

    def written(self) -> datetime:
        return self.bucket.modified(self.path) or datetime.now(UTC)

    def free(self) -> None:
        with suppress(S3Error):  # it expires
            there = self.bucket.get(self.path)
            if there is not None and there[1] == self.etag:
                self.bucket.delete([self.path])


def require_held(bucket: Bucket) -> None:
    """Raises LakeError if this process has lost a lease of the lake that it works under."""
    for lease in list(_HELD):
        if lease.bucket == bucket and lease.process == os.getpid() and lease.is_lost:
            raise LakeError(
                f"this process could not renew its lease on {bucket.url} for {EXPIRE_S - RENEW_S:.0f} s (the "
                "machine slept, or the store did not answer), so other machines may have changed the lake: nothing "
                "more is written to it; run the command again"
            )


@contextmanager
def shared(bucket: Bucket, name: str, wait: Callable[[str], None]) -> Iterator[None]:
    """Holds a lease beside others. Waits while somebody holds it alone; `wait` gets a sentence then."""
    said = False
    while True:
        with ExitStack() as stack:
            own = stack.enter_context(_held(bucket, f"{HOME}/{name}/{secrets.token_hex(8)}.json"))
            alone = _holder(bucket, f"{HOME}/{name}.json", own.written())
            if alone is None:
                yield
                return
        if not said:
            wait(alone)
            said = True
        time.sleep(LOOK_S)


@contextmanager
def exclusive(bucket: Bucket, name: str, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Holds a lease alone. Raises LeaseHeld while anybody else holds it; `wait`: waits instead, and gets a sentence first."""
    said = False
    while True:
        with ExitStack() as stack:
            try:
                own = stack.enter_context(_held(bucket, f"{HOME}/{name}.json"))
                other = next(
                    (
                        holder
                        for item in bucket.objects(f"{HOME}/{name}")
                        if (holder := _holder(bucket, item.key, own.written())) is not None
                    ),
                    None,
                )
            except LeaseHeld as error:
                other = str(error)
            if other is None:
                yield
                return
        if wait is None:
            raise LeaseHeld(other)
        if not said:
            wait(other)
            said = True
        time.sleep(LOOK_S)


@contextmanager
def _held(bucket: Bucket, path: str) -> Iterator[_Lease]:
    """Writes a lease and renews it until the block ends. Raises LeaseHeld if another process holds this lease."""
    content = json.dumps({"host": socket.gethostname(), "process": os.getpid(), "lease": secrets.token_hex(8)}).encode()
    lease, ended = _Lease(bucket, path, content), threading.Event()

    def renew() -> None:
        while not ended.wait(RENEW_S):
            lease.renew()

    thread = threading.Thread(target=renew, name=f"lease {path}", daemon=True)
    thread.start()
    _HELD.add(lease)
    try:
        yield lease
    finally:
        _HELD.discard(lease)
        ended.set()
        thread.join()
        lease.free()


def _taken(bucket: Bucket, path: str, content: bytes) -> str:
    """Creates a lease, or takes over one that has expired; returns its etag."""
    try:
        return bucket.put(path, content, None)
    except Conflict:
        there = bucket.get(path)
        if there is None:
            return _taken(bucket, path, content)
        probe = f"{HOME}/.clock-{secrets.token_hex(8)}"
        bucket.put(probe, b"", None)
        try:
            now = bucket.modified(probe)
        finally:
            bucket.delete([probe])
        holder = _holder(bucket, path, now or datetime.now(UTC))
        if holder is not None:
            raise LeaseHeld(holder) from None
        try:
            return bucket.put(path, content, there[1])
        except Conflict:
            raise LeaseHeld("another process") from None


def _holder(bucket: Bucket, path: str, now: datetime) -> str | None:
    """Who holds a lease at this time; None if it has expired or there is none."""
    written, content = bucket.modified(path), bucket.get(path)
    if written is None or content is None or (now - written).total_seconds() > EXPIRE_S:
        return None
    try:
        said = json.loads(content[0])
        return f"process {said['process']} on {said['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _seconds() -> float:
    """A clock that only goes on, also while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
