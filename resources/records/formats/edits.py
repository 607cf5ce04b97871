"""Edits: what a model said and what a person made of it, {request_id | trace_id | ..., original, corrected} under many names.

The correction becomes feedback named `correction`, with the corrected text as its comment. A rating in the same record
(LangSmith's {run_id, key, score, correction}) is feedback, too. resources/records/edits.py has the names.
"""

from __future__ import annotations

from resources.records.edits import is_edit
from resources.records.formats.format import Format

FORMAT = Format("edits", is_edit, fills=("feedback",))
