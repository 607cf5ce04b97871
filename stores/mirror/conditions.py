"""Tries whether a store has conditional writes: If-None-Match and If-Match of PUT.

A lake needs them: two writers of one version of a table would otherwise both succeed, and one would be lost. A machine tries
the store when it makes a lake, and before it first writes to one; a machine that only reads writes nothing.
"""

from __future__ import annotations

import secrets
from contextlib import suppress

from stores.lake_error import LakeError
from stores.mirror.bucket import Bucket, Conflict

PROBE = ".probe-"


def try_conditions(bucket: Bucket) -> None:
    """Raises LakeError if the store ignores conditions of writes, S3Error if it refuses to write or to delete."""
    path = f"{PROBE}{secrets.token_hex(8)}"
    etag = bucket.put(path, b"1", None)
    try:
        ignored = []
        for condition, was in (("If-None-Match", None), ("If-Match", "0" * 32)):
            with suppress(Conflict):
                bucket.put(path, condition.encode(), was)
                ignored.append(condition)
        if not ignored:
            etag = bucket.put(path, b"2", etag)
    except Conflict:
        ignored = ["If-Match"]
    finally:
        bucket.delete([path])
    if ignored:
        raise LakeError(
            f"the store of {bucket.url} has no conditional writes (it ignores {' and '.join(ignored)}), so two writers would "
            "lose rows: use AWS S3, MinIO, Ceph, Cloudflare R2 or another store with them, or a lake on a disk"
        )
