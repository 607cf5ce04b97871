"""Plain text to learn as it stands: lines of {text}, or, where the recipe names the format, a whole .txt or .md file.

Such a row has no request; every token of it is learnt, without a chat template. Its status is `text`. Applications' own
log lines have a `text` too: without a format in the recipe only records are text that have no other keys than those of
published corpora. A file that is no JSON is taken as text only where the recipe says `format: text`: broken JSON must
not be swallowed as prose.
"""

from __future__ import annotations

from resources.reading.formats.format import Format

KEYS = frozenset((
    "text", "id", "doc_id", "uuid", "url", "title", "source", "meta", "metadata", "timestamp", "date", "created", "added",
    "version", "dump", "file_path", "language", "language_score", "token_count", "license", "subset", "red_pajama_subset",
    "workload_id", "session_id",
))
"""Of a text without a named format: those of C4, The Pile, RedPajama, Dolma, FineWeb, Wikipedia, and ours."""


def recognises(record: dict) -> bool:
    return isinstance(record.get("text"), str) and record.keys() <= KEYS


FORMAT = Format("text", recognises, plain_text=True, when_named=lambda record: isinstance(record.get("text"), str))
