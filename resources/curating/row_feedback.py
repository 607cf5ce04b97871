"""Joins feedback with rows: one number for each interaction.

    attach_row_feedback(connection)    # views feedback and conversations -> table row_feedback (interaction_id, value)
"""

from __future__ import annotations

import duckdb

from resources.reading.ties import attach_feedback_ids
from resources.sql_files import run


def attach_row_feedback(connection: duckdb.DuckDBPyConnection) -> None:
    """Creates the table `row_feedback` (interaction_id, value) from the views `feedback` and `conversations`."""
    attach_feedback_ids(connection)
    run(connection, "curating/clean/row_feedback")
