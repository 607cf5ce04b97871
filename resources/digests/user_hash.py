"""Keyed hashes of ids: what tables have instead of user ids, and tombstones instead of any id."""

import hashlib
import os
import re
import unicodedata
from contextlib import suppress

USER_HASH_KEY = "MILLRACE_USER_HASH_KEY"
"""The environment variable with the key for hashing user ids."""

_CHECKED = "erasures of this lake"
_BLANKS = r"[\s\u200b-\u200f\u2060\ufeff]+"
_ADDRESS = re.compile(r"""(?:[^<>]*<)?["']?(?:mailto:)?([^\s@<>"']+)@([^\s@<>"']+\.[^\s@<>"'.]{2,})\.?["']?>?""")


def hash_key() -> str:
    """The key; "" where none is set."""
    return os.environ.get(USER_HASH_KEY, "")


def unkeyed_sentence() -> str:
    """What to say where no key is set; "" with one."""
    return "" if hash_key() else f"user ids are hashed without a key and can be guessed: set {USER_HASH_KEY}"


def user_of(identifier: str) -> str:
    """The spelling of a user's id that is hashed: without blanks around it, in Unicode's form NFC; a mail address also in lower
    case and without a name, as every mail server reads it. Case counts in any other id: `aB` and `Ab` may be two people.
    An id of visible ASCII without @ is unchanged: `user_name` in sql/reading/macros.sql relies on it."""
    identifier = unicodedata.normalize("NFC", re.sub(f"^{_BLANKS}|{_BLANKS}$", "", identifier))
    address = _ADDRESS.fullmatch(unicodedata.normalize("NFC", unicodedata.normalize("NFKC", identifier).lower()))
    if address is None:
        return identifier
    return f"{address[1]}@{'.'.join(map(_label, address[2].split('.')))}"


def _label(label: str) -> str:
    if label.startswith("xn--"):
        with suppress(UnicodeError):
            return label[4:].encode("ascii").decode("punycode")
    return label


def keyed_hash(identifier: str, key: str | None = None) -> str:
    """sha256 over the key (None: the one that is set), a unit separator and the id, as `stage` in sql/reading/extraction.sql
    computes it."""
    key = hash_key() if key is None else key
    return hashlib.sha256(f"{key}\x1f{identifier}".encode("utf-8", "surrogatepass")).hexdigest()


def key_check(key: str | None = None) -> str:
    """The key's fingerprint: equal where the same key was used."""
    return keyed_hash(_CHECKED, key)[:16]
