"""Langfuse's blob export of scores: people's, programs' and judges' verdicts on an observation, a trace or a session.

A NUMERIC score is its value, a BOOLEAN one a thumb; of a CATEGORICAL or TEXT one the word counts, as `value` is the
category's number there.
"""

from __future__ import annotations

from resources.reading.formats.format import Format

TYPES = ("NUMERIC", "BOOLEAN", "CATEGORICAL", "TEXT")


def recognises(record: dict) -> bool:
    return record.get("data_type") in TYPES and "name" in record and bool({"value", "string_value"} & record.keys())


FORMAT = Format("langfuse_scores", recognises, fills=("feedback",))
