"""Plain text to train on: lines of {text}, or, where the recipe names the format, a whole .txt or .md file.

Such a row has no request; every token is learnt, without a chat template. Its status is `text`. Application logs have a
`text` key too, so without a named format a record is text only if all its keys are those of published corpora. A file that
is not JSON is text only where the recipe says `format: text`: broken JSON must not become prose.
"""

from __future__ import annotations

from resources.records.formats.format import Format

KEYS = frozenset(
    (
        "text",
        "id",
        "doc_id",
        "uuid",
        "url",
        "title",
        "source",
        "meta",
        "metadata",
        "timestamp",
        "date",
        "created",
        "added",
        "version",
        "dump",
        "file_path",
        "language",
        "language_score",
        "token_count",
        "license",
        "subset",
        "red_pajama_subset",
        "workload_id",
        "session_id",
    )
)
"""Of a text without a named format: those of C4, The Pile, RedPajama, Dolma, FineWeb, Wikipedia, and ours."""


def recognises(record: dict) -> bool:
    return isinstance(record.get("text"), str) and record.keys() <= KEYS


FORMAT = Format("text", recognises, plain_text=True, when_named=lambda record: isinstance(record.get("text"), str))
