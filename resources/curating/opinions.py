"""What people said of each interaction: the one place where feedback meets the rows that it names.

    hear(connection)                 # from the views feedback and conversations to the table verdicts (interaction_id, value)
    name(connection)                 # only the views feedback_said and feedback_names, which the ingest's ties are made of too
"""

from __future__ import annotations

import duckdb

from resources.sql_files import run


def name(connection: duckdb.DuckDBPyConnection) -> None:
    """Views of feedback by its most telling id, and of the ids by which it may name each of `conversations`."""
    run(connection, "reading/ties/feedback_with_id")
    run(connection, "reading/ties/interaction_ids")


def hear(connection: duckdb.DuckDBPyConnection) -> None:
    """Leaves the table `verdicts`."""
    name(connection)
    run(connection, "curating/clean/row_feedback")
