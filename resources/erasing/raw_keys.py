"""Looks for a user in the logs themselves, under keys that nothing reads: the lake has no column for them.

    for sentence in named_in_logs(lake, "U2"): print(sentence)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pyarrow.compute as pc

from model_ops.wording import counted
from resources.lake import Lake
from resources.reading.json_paths import steps_of, value_at
from resources.reading.log_reader import Records, record_of
from resources.reading.object_reader import read_object
from resources.reading.sources import open_object
from resources.reading.unread_keys import fields_line, fields_of, unread_in
from resources.tables import Tables

MOST_BYTES = 4 << 30
"""Most bytes of logs that are searched."""


def named_in_logs(lake: Lake, identifier: str) -> Iterator[str]:
    """Sentences: where the id stands under a key that nothing reads, and which sources name users under such keys."""
    tables = Tables(lake)
    unread = unread_in(tables)
    if not unread:
        return
    columns = ["source", "uri", "etag", "bytes", "unread_keys"]
    listed = tables.open("objects").to_pyarrow_table(columns=columns).to_pylist()
    found: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    searched = 0
    for item in (SimpleNamespace(**row) for row in listed if row["unread_keys"]):
        searched += item.bytes
        if searched > MOST_BYTES:
            yield f"only the first {MOST_BYTES >> 30} GiB of the logs were searched for keys that nothing reads"
            break
        for path, row in _places(item, identifier):
            found[item.source, path] += 1
            first.setdefault((item.source, path), f"{item.uri}:{row}")
    for (source, path), records in found.items():
        yield (f"source {source}: this user stands under {path} in {counted(records, 'record')} ({first[source, path]} first), "
               f"and nothing reads that key, so no row is theirs. Add {fields_line({'user': path})} to the source, run "
               "the recipe, and forget the user then; --apply --even-unseen now keeps their records from being read")
    for (workload, source), keys in unread.items():
        named = fields_of(keys).get("user")
        if named and (source, named) not in found:
            yield (f"source {source} of {workload} seems to name users under {named}, which nothing reads: "
                   f"{fields_line({'user': named})} would")


def _places(item: Any, identifier: str) -> Iterator[tuple[str, int]]:
    """Unread paths whose value is the id, with the row."""
    paths = {path: steps_of(path) for path, _, _ in json.loads(item.unread_keys)}
    with suppress(OSError), open_object(item) as file:  # an object that is gone holds nobody
        for part in read_object(file, item.uri, False):
            if not isinstance(part, Records):
                continue
            holding = pc.match_substring(part.raw, json.dumps(identifier, ensure_ascii=False).strip('"'))
            for row, text in zip(part.rows.filter(holding).to_pylist(), part.raw.filter(holding).to_pylist(), strict=True):
                record = record_of(text) or {}
                for path, steps in paths.items():
                    if str(value_at(record, steps)) == identifier:
                        yield path, row
