"""Where logs lie and which of them were read: the recipe's `sources`, listing in key order (local, S3, any fsspec filesystem),
bytes of an object, and the ledger with one row per object. Start with sources.py, then ledger.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.sources.ledger import DigestReader, Ledger, LedgerEntry, Opened, prefetch
    from resources.sources.listing import LogObject, RemoteError, SourceError
    from resources.sources.sources import (
        SourceSettings,
        Uri,
        absolute_uri,
        content_digest,
        days_in,
        is_local,
        list_objects,
        local_path,
        nothing_under,
        objects_after,
        open_object,
        plain_path,
        remote_uri,
        workloads_of,
    )
    from resources.sources.unread_objects import new_objects, watched_objects

__getattr__, __dir__, __all__ = door(__name__, __file__)
