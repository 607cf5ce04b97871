"""Finds the log object that a path means, in any spelling.

    objects_of(connection, "../logs/gateway.jsonl")    # its ledger rows, one per workload; [] if there is none
    as_folder(connection, "logs/gateway")              # a sentence about a folder of objects
    of_that_name(connection, "old/gateway.jsonl")      # objects of the same name elsewhere

A path may be relative, with `~`, `.`, `..` or links, a file:// or s3a:// uri, or only the end of an object's uri.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unicodedata import normalize

import duckdb

from model_ops.wording import counted
from resources.catalog.catalog import CatalogError
from resources.reading.local_path import is_local, local_path, plain_path, remote_uri
from resources.sql_files import rows

MOST_NAMED = 3


def objects_of(connection: duckdb.DuckDBPyConnection, path: str, exactly: bool = False) -> list[dict[str, Any]]:
    """Ledger rows of the object that `path` means. exactly: the end of a uri is not enough.

    Raises CatalogError if it may be several objects.
    """
    if not path:
        return []
    spellings = _spellings(path)
    found = rows(connection, "why/objects", spellings=spellings, ending=None if exactly else _ending(path)).to_pylist()
    found = found or _same_file(connection, path)
    uris = sorted({item["uri"] for item in found})
    if len(uris) > 1:
        raise CatalogError(f"{path} may be any of {len(uris)} log objects ({_some(uris)}): give more of it")
    return found


def as_folder(connection: duckdb.DuckDBPyConnection, path: str) -> str:
    """A sentence about a path that is a folder, in the ledger or on this machine; "" if it is not a folder."""
    local = local_path(path)
    there = bool(local) and Path(local).is_dir()
    if not there and "/" not in path:
        return ""
    spellings = [f"{each.rstrip('/')}/" for each in _spellings(path)]
    [inside] = rows(connection, "why/folder", spellings=spellings, ending=f"{_ending(path)}/").to_pylist()
    if inside["objects"]:
        return (f"{path} is a folder of {counted(inside['objects'], 'log object')}: ask for one of them, such as "
                f"{inside['first_uri']}")
    return (f"{path} is a folder, and no log object in it is known: ask for an object of a recipe's source, or a line, "
            "URI:ROW") if there else ""


def of_that_name(connection: duckdb.DuckDBPyConnection, path: str) -> str:
    """The known objects that have the same file name as `path`; "" if there are none."""
    name = normalize("NFC", path.rstrip("/").rpartition("/")[2])
    return _some([row["uri"] for row in rows(connection, "why/of_name", name=name).to_pylist()])


def _some(uris: list[str]) -> str:
    return ", ".join(uris[:MOST_NAMED]) + (", ..." if len(uris) > MOST_NAMED else "")


def _spellings(path: str) -> list[str]:
    """The uris that a path may stand for, most likely first, in Unicode NFC."""
    found = [path]
    if is_local(path) and "\0" not in path:
        plain = plain_path(path)
        folder, name = os.path.split(plain)
        found += [plain, f"{os.path.realpath(folder).rstrip('/')}/{name}", os.path.realpath(plain), local_path(path) or plain]
    else:
        found.append(remote_uri(path))
    return list(dict.fromkeys(normalize("NFC", each) for each in found))


def _ending(path: str) -> str:
    """The path as the end of a uri: a slash before it, without scheme, `./` and `../`."""
    path = plain_path(path) if path.lower().startswith("file:") else path
    parts = os.path.normpath(path).split("/")
    return normalize("NFC", "/" + "/".join(part for part in parts if part not in ("", ".", "..")))


def _same_file(connection: duckdb.DuckDBPyConnection, path: str) -> list[dict[str, Any]]:
    """Objects that are the same file as `path`, where the ledger knows it by another link."""
    local = local_path(path)
    if local is None or "\0" in local or not Path(local).is_file():
        return []
    alike = rows(connection, "why/of_size", bytes=Path(local).stat().st_size).to_pylist()
    return [item for item in alike if Path(item["uri"]).is_file() and Path(item["uri"]).samefile(local)]
