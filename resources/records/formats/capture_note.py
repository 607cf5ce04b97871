"""Notes of the capture layer about exchanges that it could not keep: {capture_note: {not_kept: {reason: count}, since, until}}.

A note is no interaction: it is counted, so that a day whose traffic is not whole can be told from a quiet one.
"""

from __future__ import annotations

from resources.records.formats.format import Format

CAPTURE_NOTE_KEY = "capture_note"


def recognises(record: dict) -> bool:
    return isinstance(record.get(CAPTURE_NOTE_KEY), dict)


FORMAT = Format("capture_note", recognises)
