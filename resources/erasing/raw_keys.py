"""Looks for a user in the logs themselves, under keys that nothing reads: the lake has no column for them.

for sentence in named_in_logs(lake, "U2", everywhere=True): print(sentence)"""

import json
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from types import SimpleNamespace
from typing import Any

import pyarrow.compute as pc

from model_ops.jobs import counted
from resources.digests import keyed_hash, user_of
from resources.erasing.journal import Kind
from resources.lake import PARTITIONS, SCHEMAS, LakeLayout, Tables, attach_files, rows, run, workbench
from resources.reading import fields_line, fields_of, unread_in
from resources.records import FORMATS, Records, json_paths, read_object, record_of, shown_attributes, synonyms
from resources.sources import open_object

MOST_BYTES = 4 << 30
"""Most bytes of logs that are searched."""
_TEXT = "*"


def named_in_logs(lake: LakeLayout, identifier: str, everywhere: bool) -> Iterator[str]:
    """Sentences: where the id stands under a key that nothing reads, and which sources name users under such keys. everywhere:
    the id is nobody's that the lake knows, so keys inside a request or a response are searched too. They are not listed as
    unread, because most are parameters of an interface."""
    tables = Tables(lake)
    unread = unread_in(tables)
    table = tables.open("objects")
    if table is None or not (unread or (everywhere and tables.files("objects"))):
        return
    there = table.schema().to_arrow().names  # an older table has no unread_keys
    wanted: list[str] = ["source", "uri", "etag", "bytes", "unread_keys"]
    columns = [name for name in wanted if name in there]
    listed = table.to_pyarrow_table(columns=columns).to_pylist()
    records_by_place: Counter[tuple[str, str, str, bool]] = Counter()
    first: dict[tuple[str, str, str], str] = {}
    searched = 0
    paths: dict[str, set[str]] = {}  # of a source, because a pair lists the keys of its request with the response's object
    for row in listed:
        paths.setdefault(row["source"], set()).update(path for path, _, _ in json.loads(row.get("unread_keys") or "[]"))
    asked = user_of(identifier)
    # two workloads may share an object
    for item in {row["uri"]: SimpleNamespace(**row) for row in listed if everywhere or paths[row["source"]]}.values():
        searched += item.bytes
        if searched > MOST_BYTES:
            yield f"only the first {MOST_BYTES >> 30} GiB of the logs were searched for keys that nothing reads"
            break
        try:
            for path, row, written, leads in _places(item, paths[item.source], asked, everywhere):
                spelled = asked if user_of(written) == asked else written  # one line for all spellings of the asked user
                records_by_place[item.source, path, spelled, leads] += 1
                first.setdefault((item.source, path, spelled), f"{item.uri}:{row}")
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # an object that is gone names no user
                yield f"{item.uri} could not be searched for keys that nothing reads: {error}"
    for (source, path, written, leads), records in records_by_place.items():
        where = f"{counted(records, 'record')} ({first[source, path, written]} first)"
        if path == _TEXT:
            yield f"source {source}: the address stands in the texts of {where}: forget their sessions if these must go"
            continue
        if user_of(written) != asked:
            yield f"source {source}: a user of almost this id stands under {path} in {where}: --user {shlex.quote(written)}"
            continue
        remedy = (
            f"Add {fields_line({'user': path})} to the source, run the recipe, and forget the user then; --apply "
            "--even-unseen now keeps their records from being read"
            if leads
            else "No path of fields leads there: log the user under a key of its own, or erase these records from the logs"
        )
        yield (
            f"source {source}: this user stands under {path} in {where}, and nothing reads that key, so no row is theirs by "
            f"it. {remedy}"
        )
    for (workload, source), keys in unread.items():
        named = fields_of(keys).get("user")
        if named and not any(source == place[0] and _is_listed(place[1], {named}) for place in first):
            yield (
                f"source {source} of {workload} seems to name users under {named}, which nothing reads: "
                f"{fields_line({'user': named})} would"
            )


def _is_listed(path: str, paths: set[str]) -> bool:
    """Whether a path of a logged line is one of the unread ones, which name the request and the response of a joined pair."""
    listed = (tuple(map(str, json_paths.steps_of(each))) for each in paths if each.startswith(("request.", "response.")))
    return path in paths or synonyms.inside_body(tuple(map(str, json_paths.steps_of(path))), {each[1:] for each in listed})


def _places(item: Any, paths: set[str], asked: str, everywhere: bool) -> Iterator[tuple[str, int, str, bool]]:
    """Paths whose value is the id in any case, with the row, the id as it stands there, and whether `fields` could name the
    path: unread ones, and everywhere all that name no column and have a text. Everywhere, also texts with a mail address."""
    with open_object(item) as file:
        for part in read_object(file, item.uri, False):
            if not isinstance(part, Records):
                continue
            ways = {unicodedata.normalize(form, asked) for form in ("NFC", "NFD")}
            spelled = [json.dumps(way, ensure_ascii=is_ascii)[1:-1] for way in ways for is_ascii in (False, True)]
            holding = reduce(pc.or_, (pc.match_substring(part.raw, text, ignore_case=True) for text in spelled))
            for row, text in zip(part.rows.filter(holding).to_pylist(), part.raw.filter(holding).to_pylist(), strict=True):
                record = record_of(text) or {}
                is_otlp = FORMATS["otlp"].recognises(record)
                in_texts = everywhere and "@" in asked
                for path, value in shown_attributes(record) if is_otlp else synonyms.shown_leaves(record):
                    said = list(map(str, value if isinstance(value, list) else [value]))
                    written = next((each for each in said if user_of(each).lower() == asked.lower()), None)
                    if written is None:
                        continue
                    in_texts, steps = False, json_paths.steps_of(path)
                    names = tuple(str(step) for step in steps if step != "body")
                    is_near = user_of(written) != asked or synonyms.column_of(names) is None
                    if _is_listed(path, paths) or (everywhere and isinstance(value, str) and is_near):
                        leads = is_otlp or str(json_paths.value_at(record, steps)) == written
                        yield path, row, written, "*" not in path and leads
                if in_texts:
                    yield _TEXT, row, asked, False


def near_ids(tables: Tables, kind: Kind, identifier: str) -> Iterator[str]:
    """Sentences on other ids of the lake that differ from the asked one in case, quotes, blanks or a mail address's tag."""
    hashes = {keyed_hash(way): way for way in _ways(identifier)} if kind == "user" else {}
    with workbench() as connection:
        for name in ("interactions", "retired"):
            attach_files(connection, name, SCHEMAS[name], tables.files(name), PARTITIONS[name])
        run(connection, "erasing/known_interactions")
        near_rows = rows(connection, "erasing/ids_near", kind=kind, hashes=list(hashes), asked=identifier.strip())
    for row in near_rows.to_pylist():
        near = hashes.get(row["id"], row["id"])
        yield f"another {kind} of almost this id has {counted(row['rows'], 'row')}: --{kind} {shlex.quote(near)}"


def _ways(identifier: str) -> set[str]:
    """Other ways to write a user's id."""
    plain = identifier.strip().strip("\"'`<>()[]").strip()
    said = {plain, *(way(plain) for way in (str.lower, str.upper, str.title, str.capitalize, str.swapcase))}
    said |= {re.sub(r"\+[^@]*@", "@", each) for each in said}
    said |= {f"{opening}{plain}{closing}" for opening, closing in ('""', "''", "``", "<>", "()", "[]")}
    return {user_of(each) for each in said if each} - {user_of(identifier)}
