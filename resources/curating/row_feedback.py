"""Joins feedback with rows: one number for each interaction.

attach_row_feedback(connection, {"reward": 1.0})    # views feedback, conversations -> table row_feedback
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb

from resources.lake import run
from resources.reading import attach_feedback_ids


def attach_row_feedback(connection: duckdb.DuckDBPyConnection, least: Mapping[str, float]) -> None:
    """Creates the table `row_feedback` (interaction_id, value) from the views `feedback` and `conversations`.

    least: lowest good value by the feedback's name; a lower value counts as below zero.
    """
    attach_feedback_ids(connection)
    run(connection, "curating/clean/row_feedback", names=list(least), least=list(least.values()))
