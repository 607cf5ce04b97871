"""Langfuse's blob export of scores that people, programs and judges gave to an observation, a trace or a session.

A NUMERIC score is its value, a BOOLEAN one a thumb. Of CATEGORICAL and TEXT scores the word is used: their `value` is only the
category's number. A CORRECTION is an edit: its text is what the answer should have been.
"""

from __future__ import annotations

from resources.records.formats.format import Format

TYPES = ("NUMERIC", "BOOLEAN", "CATEGORICAL", "TEXT", "CORRECTION")


def recognises(record: dict) -> bool:
    return (
        record.get("data_type") in TYPES
        and "name" in record
        and bool({"value", "string_value", "long_string_value"} & record.keys())
    )


FORMAT = Format("langfuse_scores", recognises, fills=("feedback",))
