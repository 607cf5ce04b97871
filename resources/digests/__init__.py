"""Digests that decide whether something changed: of an operation's code, of SQL, of slices of tables, and keyed hashes of ids
(user_hash.py). A changed digest makes an artefact anew, so comments and layout do not count."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.digests.code import PACKAGES, PROJECT, source_digest
    from resources.digests.slices import (
        AS_SERVED,
        AnswerCache,
        all_digests,
        counts_alone,
        keep_slice_digests,
        partition_key,
        rows_digest,
        slice_digest,
    )
    from resources.digests.user_hash import USER_HASH_KEY, hash_key, key_check, keyed_hash, unkeyed_sentence, user_of

__getattr__, __dir__, __all__ = door(__name__, __file__)
