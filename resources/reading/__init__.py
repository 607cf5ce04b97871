"""Reads new log objects into the lake: `ingest` stages objects batch by batch, decides what becomes of each row, commits
decisions, quarantine, feedback and interactions, in this order, then the ledger. Start with ingestion.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.reading.batches import open_staging
    from resources.reading.chats import CHATS, CHATS_SOURCE, chats_of, old_chats, remove_chats, with_chats
    from resources.reading.commit import EVERYWHERE, hash_erased, keep_key, refuse_other_key
    from resources.reading.ingestion import IngestReport, ingest, ingest_lock, moved_note, notes_on, observe
    from resources.reading.routing import recognised_format
    from resources.reading.ties import TIES, attach_feedback_ids
    from resources.reading.unread_keys import (
        UnreadKey,
        fields_line,
        fields_of,
        mixed_workloads,
        sum_keys,
        unread_in,
        unread_text,
        yaml_line,
    )

__getattr__, __dir__, __all__ = door(__name__, __file__)
