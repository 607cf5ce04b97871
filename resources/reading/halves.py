"""Where the two halves of a record lie: a batch's requests in one object, its responses in another.

    folder, stem = place_of("s3://logs/batches/2026-06-01/outputs/b1_output.jsonl")     # .../2026-06-01, b1

Halves with one custom_id belong together within a folder, where words for the sides (inputs/, outputs/, ...) are left out
of path and name; where a folder has several such requests, the name decides. Both depend on the uri alone, and all halves
of a folder are read in one go: so it does not matter which object came first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from resources.reading.ledger import Entry

SIDES = {f"{word}{plural}" for word in ("input", "output", "request", "response", "result", "error") for plural in ("", "s")}


def place_of(uri: str) -> tuple[str, str]:
    """The folder and the name of an object, without the words that tell the sides of a batch."""
    *folders, name = uri.split("/")
    words = re.split(r"[_\-. ]+", name.split(".", 1)[0])
    return (
        "/".join(folder for folder in folders if folder.lower() not in SIDES),
        "_".join(word for word in words if word.lower() not in SIDES),
    )


def beside(halved: Sequence[Entry], wanted: Sequence[Entry]) -> list[Entry]:
    """Of objects that hold halves, those in a folder where something is read now: they are read again with it. But not those
    whose other halves are gone: what came of them stays."""
    if not halved:
        return []
    chosen = {(entry.source, entry.uri) for entry in wanted}
    here = {entry.uri for entry in (*halved, *wanted)}
    while torn := {entry.uri for entry in halved
                   if entry.uri in here and (entry.source, entry.uri) not in chosen and not here.issuperset(entry.partners)}:
        here -= torn
    folders = {(entry.source, place_of(entry.uri)[0]) for entry in wanted}
    return [
        entry for entry in halved
        if entry.uri in here and (entry.source, entry.uri) not in chosen and (entry.source, place_of(entry.uri)[0]) in folders
    ]
