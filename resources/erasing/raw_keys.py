"""Looks for a user in the logs themselves, under keys that nothing reads: the lake has no column for them.

for sentence in named_in_logs(lake, "U2", everywhere=True): print(sentence)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow.compute as pc

from model_ops.jobs import counted
from resources.lake import LakeLayout, Tables
from resources.reading import fields_line, fields_of, unread_in
from resources.records import FORMATS, Records, json_paths, read_object, record_of, shown_attributes, synonyms
from resources.sources import open_object

MOST_BYTES = 4 << 30
"""Most bytes of logs that are searched."""


def named_in_logs(lake: LakeLayout, identifier: str, everywhere: bool) -> Iterator[str]:
    """Sentences: where the id stands under a key that nothing reads, and which sources name users under such keys.

    everywhere: the id is nobody's that the lake knows, so keys inside a request or a response are searched too. They are not
    listed as unread, because most are parameters of an interface.
    """
    tables = Tables(lake)
    unread = unread_in(tables)
    if not (unread or (everywhere and tables.files("objects"))):
        return
    table = tables.open("objects")
    there = table.schema().to_arrow().names  # an older table has no unread_keys
    columns = [name for name in ("source", "uri", "etag", "bytes", "unread_keys") if name in there]
    listed = table.to_pyarrow_table(columns=columns).to_pylist()
    found: Counter[tuple[str, str, bool]] = Counter()
    first: dict[tuple[str, str], str] = {}
    searched = 0
    paths: dict[str, set[str]] = {}
    for row in listed:  # two workloads may share an object
        paths.setdefault(row["uri"], set()).update(path for path, _, _ in json.loads(row.get("unread_keys") or "[]"))
    for item in {row["uri"]: SimpleNamespace(**row) for row in listed if everywhere or paths[row["uri"]]}.values():
        searched += item.bytes
        if searched > MOST_BYTES:
            yield f"only the first {MOST_BYTES >> 30} GiB of the logs were searched for keys that nothing reads"
            break
        try:
            for path, row, leads in _places(item, paths[item.uri], identifier, everywhere):
                found[item.source, path, leads] += 1
                first.setdefault((item.source, path), f"{item.uri}:{row}")
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # an object that is gone names no user
                yield f"{item.uri} could not be searched for keys that nothing reads: {error}"
    for (source, path, leads), records in found.items():
        remedy = (
            f"Add {fields_line({'user': path})} to the source, run the recipe, and forget the user then; --apply "
            "--even-unseen now keeps their records from being read"
            if leads
            else "No path of fields leads there: log the user under a key of its own, or erase these records from the logs"
        )
        yield (
            f"source {source}: this user stands under {path} in {counted(records, 'record')} ({first[source, path]} first), "
            f"and nothing reads that key, so no row is theirs by it. {remedy}"
        )
    for (workload, source), keys in unread.items():
        named = fields_of(keys).get("user")
        if named and (source, named) not in first:
            yield (
                f"source {source} of {workload} seems to name users under {named}, which nothing reads: "
                f"{fields_line({'user': named})} would"
            )


def _places(item: Any, paths: set[str], identifier: str, everywhere: bool) -> Iterator[tuple[str, int, bool]]:
    """Paths whose value is the id, with the row, and whether `fields` could name the path: unread ones, and everywhere all that
    name no column and have a text."""
    with open_object(item) as file:
        for part in read_object(file, item.uri, False):
            if not isinstance(part, Records):
                continue
            spelled = [json.dumps(identifier, ensure_ascii=is_ascii)[1:-1] for is_ascii in (False, True)]
            holding = pc.or_(*(pc.match_substring(part.raw, text, ignore_case=True) for text in spelled))
            for row, text in zip(part.rows.filter(holding).to_pylist(), part.raw.filter(holding).to_pylist(), strict=True):
                record = record_of(text) or {}
                is_otlp = FORMATS["otlp"].recognises(record)
                for path, value in shown_attributes(record) if is_otlp else synonyms.shown_leaves(record):
                    if identifier not in map(str, value if isinstance(value, list) else [value]):
                        continue
                    steps = json_paths.steps_of(path)
                    is_hidden = everywhere and isinstance(value, str) and synonyms.column_of(tuple(map(str, steps))) is None
                    if path in paths or is_hidden:
                        yield path, row, "*" not in path and str(json_paths.value_at(record, steps)) == identifier
