"""The history of one request, log line or log object: ids, names and fixed texts, never what a user wrote. An object's path may
be relative, with `~`, `.`, `..` or links, a file:// or s3a:// uri, or only the end of its uri.

    history_of(lake, "chatcmpl-123").steps     # an interaction (8 or more digits do), request, trace, session
    history_of(lake, "logs/gateway/part-0.jsonl.gz:12")  # a line: kept, repeated, feedback or in quarantine
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import normalize

import duckdb
import pyarrow as pa

from model_ops.jobs import CheckFailed, counted
from resources.catalog.catalog import CatalogError, open_catalog
from resources.endpoints import Endpoint
from resources.lake import LakeLayout, rows
from resources.sources import is_local, local_path, plain_path, remote_uri

STEPS = pa.schema(
    [
        ("interaction_id", pa.string()),
        ("step", pa.int32()),
        ("stage", pa.string()),
        ("name", pa.string()),
        ("version", pa.string()),
        ("rule", pa.string()),
        ("kept", pa.bool_()),
        ("detail", pa.string()),
        ("kept_id", pa.string()),
        ("current", pa.bool_()),
    ]
)
"""step: 0 the line, or its removal by retention, 1 read, 2 cleaned, 3 judged, 4 curated, 5 sampled, 6 dataset row, 7 context of
other rows, 8 model, 9 release, 10 endpoint. current: the step belongs to the current version of its artefact."""


UNTIED = {"unknown": ", an id that no interaction read so far has", "several": ", an id that several interactions share",
    "elsewhere": ", an id that only another workload's interactions have"}  # fmt: skip
"""Why feedback is tied to no interaction, by the value of `tie`."""

LAST_ROW = 2**62
"""Upper bound of line numbers; a larger one counts as this."""


class UnknownIdError(CheckFailed):
    """Nothing in the lake has this id or line; the message says what was searched for."""


@dataclass(frozen=True)
class RecordHistory:
    """The steps of one id or line."""

    asked: str
    what: str
    steps: pa.Table
    subjects: dict[str, dict[str, Any]]
    """Facts about each interaction, by interaction id."""


def history_of(lake: LakeLayout, identifier: str) -> RecordHistory:
    """The history of what `identifier` means. Raises UnknownIdError if it means nothing, CatalogError if it is ambiguous."""
    identifier = identifier.strip()
    try:
        identifier.encode()
    except UnicodeEncodeError:
        raise UnknownIdError(f"{identifier!r} is not UTF-8 text, as ids and names in tables are: nothing has that id") from None
    with open_catalog(lake) as connection:
        meant = rows(connection, "why/interactions_with_id", identifier=identifier).to_pylist()
        if meant:
            if meant[0]["telling"] == 5 and len(meant) > 1:
                several = ", ".join(row["interaction_id"][:16] for row in meant[:5])
                raise CatalogError(f"{identifier} may be any of {len(meant)} interactions ({several}, ...): give more of it")
            return _history(connection, lake, identifier, meant[0]["what"], [row["interaction_id"] for row in meant], [])
        if objects := objects_of(connection, identifier, exactly=True):
            return _object(connection, lake, identifier, objects)
        path, row = _place(identifier)
        if row is not None and (objects := objects_of(connection, path)):
            return _line(connection, lake, identifier, objects[0], row)
        if objects := objects_of(connection, identifier):
            return _object(connection, lake, identifier, objects)
        about = rows(connection, "why/feedback_about", identifier=identifier).to_pylist()
        if about:
            steps = [_step("feedback", item["name"], item["line"], True) for item in about]
            return _history(connection, lake, identifier, "unanswered feedback", [], steps)
        if gone := _removed(connection, identifier):
            return _history(connection, lake, identifier, "removed id", gone, [])
        raise UnknownIdError(_unknown(connection, lake, identifier, path, row))


def _place(identifier: str) -> tuple[str, int | None]:
    """Path and row of URI:ROW; row None for anything else. File names may contain colons."""
    path, _, row = identifier.rpartition(":")
    if path and row.isascii() and row.isdecimal():
        return path, min(int(row), LAST_ROW)
    return identifier, None


def _unknown(connection: duckdb.DuckDBPyConnection, lake: LakeLayout, asked: str, path: str, row: int | None) -> str:
    if said := as_folder(connection, path):
        return said
    alike = of_that_name(connection, path)
    if row is not None or alike:
        where = f"{alike} has that name" if alike else '`millrace sql "select uri from objects"` lists the objects'
        return f"no log object {path} is known to {lake.place}, and no id is {asked}: {where}"
    return (
        f"no interaction, request, trace, session or feedback has the id {asked} in {lake.place}; a line in quarantine "
        "has no id of its own: ask for it as URI:ROW"
    )


def _object(
    connection: duckdb.DuckDBPyConnection, lake: LakeLayout, asked: str, objects: list[dict[str, Any]]
) -> RecordHistory:
    steps = []
    for item in objects:
        said = {"found": "waits to be read", "failed": f"could not be read: {item['problem']}; the next run tries again"}.get(
            item["state"], f"{counted(item['rows'] or 0, 'record')} of the format {item['format'] or 'unknown'}"
        )
        steps.append(_step("object", item["state"], f"{item['workload']}: {said}", item["state"] == "read"))
    for came in rows(connection, "why/of_object", uri=objects[0]["uri"]).to_pylist():
        first = f", the first at line {came['first_row']}" if came["first_row"] else ""
        what = counted(came["records"], "interaction" if came["stage"] == "interactions" else "record")
        steps.append(_step(came["stage"], came["rule"], f"{what}{first}", came["kept"]))
    return _history(connection, lake, asked, f"log object {objects[0]['uri']}", [], steps)


def _line(connection: duckdb.DuckDBPyConnection, lake: LakeLayout, asked: str, item: dict[str, Any], row: int) -> RecordHistory:
    uri = item["uri"]
    records = rows(connection, "why/line", uri=uri, row=row).to_pylist()
    if not records:
        if removed := _removed(connection, uri=uri, row=row):
            return _history(connection, lake, asked, f"line {row} of {uri}", removed, [])
        raise UnknownIdError(_no_such_line(connection, item, row))
    ids = list(dict.fromkeys(came["interaction_id"] for came in records if came["interaction_id"]))
    steps = []
    for came in records:
        if came["stage"] == "quarantine":
            steps.append(_step("quarantine", came["rule"], came["detail"], False))
        elif came["stage"] == "feedback":
            about = f"about {came['about']}{UNTIED.get(came['tie'], '')}"
            steps.append(_step("feedback", came["rule"], f"{came['detail']}, {about}", True))
            related = rows(connection, "why/interactions_with_id", identifier=came["about"]).to_pylist()
            ids += [other["interaction_id"] for other in related if other["interaction_id"] not in ids]
    return _history(connection, lake, asked, f"line {row} of {uri}", ids, steps)


def _removed(
    connection: duckdb.DuckDBPyConnection, identifier: str | None = None, uri: str | None = None, row: int | None = None
) -> list[str]:
    """Ids of the interactions with this id or line whose rows retention removed."""
    removed = rows(connection, "why/retired", identifier=identifier, uri=uri, row=row, ids=[]).to_pylist()
    return list(dict.fromkeys(gone["interaction_id"] for gone in removed))


def _no_such_line(connection: duckdb.DuckDBPyConnection, item: dict[str, Any], row: int) -> str:
    if item["state"] == "failed":
        return f"{item['uri']} could not be read: {item['problem']}; the next run tries again"
    if item["state"] != "read":
        return f"{item['uri']} is known, but was not read yet (state {item['state']}): run its recipe first"
    last = rows(connection, "why/last_row", uri=item["uri"]).to_pylist()[0]
    whole = f"; as a whole it is in quarantine: {last['problem']}" if last["problem"] else ""
    if last["row"] is None or row > last["row"]:
        return f"{item['uri']} was read, and has no record at line {row}: the last one is at {last['row'] or 0}{whole}"
    return (
        f"{item['uri']} was read, and no row came of line {row} (a blank line, one inside a longer record, a piece of a "
        "stream, a request whose response stands elsewhere, or a record that is no interaction has no history of its own: "
        f"`millrace why {item['uri']}` counts what came of all of them){whole}"
    )


def _step(stage: str, rule: str, detail: str | None, passed: bool) -> dict[str, Any]:
    return {"step": 0, "stage": stage, "rule": rule, "kept": passed, "detail": detail, "current": True}


def _history(
    connection: duckdb.DuckDBPyConnection, lake: LakeLayout, asked: str, what: str, ids: list[str], first: list[dict[str, Any]]
) -> RecordHistory:
    """The history of what was found: first the line's steps, then each interaction's, in the given order."""
    order = {interaction: place for place, interaction in enumerate(ids)}
    subjects = {row["interaction_id"]: row for row in rows(connection, "why/subjects", ids=ids).to_pylist()}
    steps = rows(connection, "why/steps", ids=ids).to_pylist()
    there = {step["interaction_id"] for step in steps if step["stage"] == "interactions"}
    for gone in rows(connection, "why/retired", identifier=None, uri=None, row=None, ids=ids).to_pylist():
        if gone["interaction_id"] not in there:
            when = f" on {gone['removed_at']:%Y-%m-%d}" if gone["removed_at"] else ""
            said = f"{gone['source_uri']}:{gone['source_row']}, read as a row of {gone['dt']}, which retention removed{when}"
            steps.append(_step("retired", "retention", said, False) | {"interaction_id": gone["interaction_id"]})
    steps += [alias for step in steps if step["stage"] == "release" for alias in _served(lake, step)]
    steps.sort(key=lambda step: (order[step["interaction_id"]], step["step"]))
    return RecordHistory(asked, what, pa.Table.from_pylist([*first, *steps], schema=STEPS), subjects)


def _served(lake: LakeLayout, release: dict[str, Any]) -> list[dict[str, Any]]:
    """The aliases that name a release now, read from the endpoint's file."""
    workload = release["name"].split("/")[0]
    aliases = Endpoint(lake, workload).read()
    return [
        {**release, "step": 10, "stage": "endpoint", "name": workload, "rule": alias, "detail": None, "current": True}
        for alias, version in aliases.all().items()
        if version == release["version"]
    ]


MOST_NAMED = 3


def objects_of(connection: duckdb.DuckDBPyConnection, path: str, exactly: bool = False) -> list[dict[str, Any]]:
    """The ledger's rows of an object. exactly: no end of a uri. Raises CatalogError if it may be several objects."""
    if not path:
        return []
    spellings = _spellings(path)
    entries = rows(connection, "why/objects", spellings=spellings, ending=None if exactly else _ending(path)).to_pylist()
    entries = entries or _same_file(connection, path)
    uris = sorted({item["uri"] for item in entries})
    if len(uris) > 1:
        raise CatalogError(f"{path} may be any of {len(uris)} log objects ({_some(uris)}): give more of it")
    return entries


def as_folder(connection: duckdb.DuckDBPyConnection, path: str) -> str:
    """A sentence about a path that is a folder, in the ledger or on this machine; "" if it is not a folder."""
    local = local_path(path)
    there = local is not None and Path(local).is_dir()
    if not there and "/" not in path:
        return ""
    spellings = [f"{each.rstrip('/')}/" for each in _spellings(path)]
    [inside] = rows(connection, "why/folder", spellings=spellings, ending=f"{_ending(path)}/").to_pylist()
    if inside["objects"]:
        return (
            f"{path} is a folder of {counted(inside['objects'], 'log object')}: ask for one of them, such as "
            f"{inside['first_uri']}"
        )
    said = f"{path} is a folder, and no log object in it is known: ask for an object of a recipe's source, or a line, URI:ROW"
    return said if there else ""


def of_that_name(connection: duckdb.DuckDBPyConnection, path: str) -> str:
    name = normalize("NFC", path.rstrip("/").rpartition("/")[2])
    return _some([row["uri"] for row in rows(connection, "why/of_name", name=name).to_pylist()])


def _some(uris: list[str]) -> str:
    return ", ".join(uris[:MOST_NAMED]) + (", ..." if len(uris) > MOST_NAMED else "")


def _spellings(path: str) -> list[str]:
    spellings = [path]
    if is_local(path) and "\0" not in path:
        plain = plain_path(path)
        folder, name = os.path.split(plain)
        spellings += [
            plain,
            f"{os.path.realpath(folder).rstrip('/')}/{name}",
            os.path.realpath(plain),
            local_path(path) or plain,
        ]
    else:
        spellings.append(remote_uri(path))
    return list(dict.fromkeys(normalize("NFC", each) for each in spellings))


def _ending(path: str) -> str:
    """The path as the end of a uri: a slash before it, without scheme, `./` and `../`."""
    path = plain_path(path) if path.lower().startswith("file:") else path
    parts = os.path.normpath(path).split("/")
    return normalize("NFC", "/" + "/".join(part for part in parts if part not in ("", ".", "..")))


def _same_file(connection: duckdb.DuckDBPyConnection, path: str) -> list[dict[str, Any]]:
    local = local_path(path)
    if local is None or "\0" in local or not Path(local).is_file():
        return []
    alike = rows(connection, "why/of_size", bytes=Path(local).stat().st_size).to_pylist()
    return [item for item in alike if Path(item["uri"]).is_file() and Path(item["uri"]).samefile(local)]
