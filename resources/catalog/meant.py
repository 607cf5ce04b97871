"""Suggests the column that was probably meant by an unknown name.

    meant("user_id", {"user_hash", "dt"})     # "user_hash"
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from resources.reading.synonyms import column_of

COLUMNS = {"user": "user_hash", "session": "session_id", "time": "ts", "id": "request_id", "trace": "trace_id",
           "latency": "latency_ms", "ttft": "ttft_ms", "feedback": "value"}
"""The tables' name of a column of resources/reading/synonyms.py, where it is another."""
WORDS = {"gate": "name", "gate_name": "name", "threshold": "wanted", "prompt": "messages", "question": "messages",
         "request": "messages", "answer": "completion", "response": "completion", "output": "completion", "day": "dt",
         "date": "dt", "version": "release", "score": "value", "recipe": "workload"}
_MISSING = re.compile(r'(?:column|named) "?(\w+)"? (?:not found|does not exist)|does not have a column named "?(\w+)"?')


def missing_column(said: str) -> str:
    """The unknown column in DuckDB's error message; "" for any other error."""
    found = _MISSING.search(said)
    return (found[1] or found[2]) if found else ""


def meant(name: str, there: Collection[str]) -> str:
    """The column of those that are there; "" if none is likely."""
    column = column_of((name,))
    likely = [WORDS.get(name.lower(), ""), COLUMNS.get(column[0], column[0]) if column else ""]
    near = difflib.get_close_matches(name.lower(), sorted(there), n=1)
    return next((each for each in (*likely, *near) if each in there), "")
