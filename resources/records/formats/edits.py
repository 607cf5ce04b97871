"""Edits: what a model said and what a person made of it, {request_id | trace_id | ..., original, corrected} under many names.

The correction becomes feedback named `correction`, with the corrected text as its comment. A rating in the same record
(LangSmith's {run_id, key, score, correction}) is feedback, too. An empty correction goes to quarantine.
resources/records/edits.py has the names.
"""

from __future__ import annotations

from resources.records.edits import is_edit, lacks_correction
from resources.records.formats.feedback import VALUES
from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    return is_edit(record) or (lacks_correction(record) and not any(key in record for key in VALUES))


FORMAT = Format("edits", recognises, fills=("feedback",))
