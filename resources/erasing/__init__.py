"""Erases rows from every place of a lake: one user, session or interaction (`forget`), or everything older than a recipe keeps
(`retention`). Rows go from tables, datasets (artefact_rows.py), caches, teachers' answers, pages and Dagster's history; weights
that learnt them are marked as tainted, not changed. A tombstone (a keyed hash of the id) keeps an erased record from coming
back when its source is read again. Start with erasure.py, which lists the places in order; retention.py is the timed way."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.erasing.erasure import ErasurePlan, complete_unfinished, forget, plan_erasure, vacuum_only
    from resources.erasing.journal import ForgetError, ask_for
    from resources.erasing.raw_keys import named_in_logs, near_ids
    from resources.erasing.retention import (
        RetentionSettings,
        is_learnt,
        keep_counts_only,
        old_data,
        remove_old_data,
        rows_with_text,
    )

__getattr__, __dir__, __all__ = door(__name__, __file__)
