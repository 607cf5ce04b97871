"""Keyed hashes of ids: what tables have instead of user ids, and tombstones instead of any id.

keyed_hash("ann@example.org")     # as the column user_hash
"""

from __future__ import annotations

import hashlib
import os

USER_HASH_KEY = "MILLRACE_USER_HASH_KEY"
"""The environment variable with the key for hashing user ids."""

_CHECKED = "erasures of this lake"


def hash_key() -> str:
    """The key; "" where none is set."""
    return os.environ.get(USER_HASH_KEY, "")


def unkeyed_sentence() -> str:
    """What to say where no key is set; "" with one."""
    return "" if hash_key() else f"user ids are hashed without a key and can be guessed: set {USER_HASH_KEY}"


def keyed_hash(identifier: str) -> str:
    """sha256 over the key, a unit separator and the id, as `stage` in sql/reading/extraction.sql computes it."""
    return hashlib.sha256(f"{hash_key()}\x1f{identifier}".encode("utf-8", "surrogatepass")).hexdigest()


def key_check() -> str:
    """Tells whether two tombstones were made with the same key."""
    return keyed_hash(_CHECKED)[:16]
