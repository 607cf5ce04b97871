"""Lines without JSON in a log whose records have a prefix (resources/records/objects/prefixed_lines.py): counted."""

from __future__ import annotations

from resources.records.formats.format import Format

FORMAT = Format("log_lines", lambda record: record.get("log_line") is True)
