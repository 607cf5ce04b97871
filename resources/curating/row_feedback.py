"""Joins feedback with rows: one number for each interaction.

attach_row_feedback(connection, {"reward": 1.0})    # views feedback, conversations -> table row_feedback
least_good(1, 5, 5)                                 # 4: of stars
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import duckdb
import yaml

from resources.lake import Tables, attach_slice, rows, run, workbench
from resources.reading import attach_feedback_ids
from resources.records import visible

MOST_OF_SCALE = 100
"""The largest value of a scale; above it are counts."""


def attach_row_feedback(connection: duckdb.DuckDBPyConnection, least: Mapping[str, float]) -> None:
    """Creates the table `row_feedback` (interaction_id, value) from the views `feedback` and `conversations`.

    least: lowest good value by the feedback's name; a lower value counts as below zero.
    """
    attach_feedback_ids(connection)
    run(connection, "curating/clean/row_feedback", names=list(least), least=list(least.values()))


def least_good(low: float | None, high: float | None, different: int) -> float | None:
    """The value from which a scale's values are good, in a guess: of 1 to 5 stars 4. None where values are no scale: some are
    below zero, all are 0 or 1, or they are counts. low, high, different: least, largest and number of different values."""
    if low is None or high is None or low < 0 or high > MOST_OF_SCALE or (high <= 1 and different < 3):
        return None
    return math.ceil(0.7 * high) if high > 1 else 0.5


def scales_without_least(tables: Tables, workload: str, least: Mapping[str, float]) -> str:
    """A sentence about feedback on scales that have no least good value, so that each value above 0 counts as a thumb up; empty
    where there is none."""
    with workbench() as connection:
        attach_slice(connection, tables, "feedback", workload)
        found = rows(connection, "curating/clean/feedback_by_name").to_pylist()
    scales, good = [], dict(least)
    for each in found:
        value = least_good(each["low"], each["high"], each["different"])
        if value is not None and each["name"] not in least:
            scales.append(f"{visible(each['name'])} ({each['low']:g} to {each['high']:g})")
            good[visible(each["name"])] = value
    if not scales:
        return ""
    line = yaml.safe_dump(good, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9).strip()
    return (
        f"feedback {', '.join(scales)}: each value above 0 counts as a thumb up; give the recipe the lowest good ones, such as "
        f"`curation: {{feedback: {{least: {line}}}}}`"
    )
