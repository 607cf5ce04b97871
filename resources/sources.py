"""Where logs lie: a source as a recipe names it, and the objects under it. Nothing is opened here.

    gateway = SourceSettings(uri="s3://logs/gateway/")
    for item in list_objects("gateway", gateway): print(item.uri, item.bytes, item.etag, days_in(item.uri))

A uri is a file, a directory (listed recursively), a glob, file://, or any URL that fsspec knows. Files and folders that
are hidden or still being written (`.x`, `_x`, `x.tmp`, `x.part`, ...) are skipped.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel, ConfigDict, Field, field_validator

MAX_OBJECTS = 2_000_000
"""A listing of more objects than this is refused: the prefix is too wide, or needs compaction."""

UNFINISHED = (".tmp", ".part", ".partial", ".crdownload", ".inprogress", "~")

_DAY = re.compile(r"(?<!\d)(\d{4})[-/](\d{2})[-/](\d{2})(?!\d)")
_KEYED_DAY = re.compile(r"(?:^|/)(?:dt|date|day|ds)=(\d{4})-(\d{2})-(\d{2})(?!\d)")


class SourceError(Exception):
    """A source that cannot be read as the recipe names it; the message says what would be right."""


class SourceSettings(BaseModel):
    """One source of logs, feedback or examples, read in place."""

    model_config = ConfigDict(extra="forbid")

    uri: str = Field(min_length=1, description="a file, directory, glob, file:// or any fsspec URL such as s3://")
    format: str = Field("auto", description="auto looks at each file's first records; else the name of a format")
    workloads: dict[str, str] = Field(
        default_factory=dict, description="the records' own workload names -> workloads of recipes"
    )

    @field_validator("format")
    @classmethod
    def _known(cls, value: str) -> str:
        from resources.formats import FORMATS

        if value != "auto" and value not in FORMATS:
            raise ValueError(f"unknown log format {value!r}; give auto or one of {', '.join(FORMATS)}")
        return value


@dataclass(frozen=True)
class LogObject:
    """One object as it was listed. `etag` changes whenever its content may have changed."""

    source: str
    uri: str
    bytes: int
    etag: str
    modified: datetime


def list_objects(name: str, source: SourceSettings, limit: int = MAX_OBJECTS) -> list[LogObject]:
    """The objects of one source, sorted by uri.

    Raises SourceError where there is nothing under the uri, more than `limit` objects, or no way to list it.
    """
    if "://" in source.uri and not source.uri.startswith("file://"):
        found = _list_remote(name, source.uri, limit)
    else:
        found = _list_local(name, source.uri.removeprefix("file://"), limit)
    if not found:
        raise SourceError(f"source {name}: no log objects under {source.uri}; give a uri that holds at least one file")
    return sorted(found, key=lambda item: item.uri)


def content_digest(name: str, uri: str) -> str:
    """sha256 over the bytes of every object under a uri: a small outside input as part of an artefact's version.

    Raises SourceError where there is nothing under it.
    """
    digest = hashlib.sha256()
    for item in list_objects(name, SourceSettings(uri=uri)):
        with open_object(item.uri) as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def open_object(uri: str) -> Any:
    """A binary file object of a listed object."""
    return Path(uri).open("rb") if "://" not in uri else fsspec.open(uri, "rb").open()


def days_in(uri: str) -> list[date]:
    """The day that an object's key names: dt=YYYY-MM-DD, else the last YYYY-MM-DD or YYYY/MM/DD in it; else none."""
    for pattern in (_KEYED_DAY, _DAY):
        for parts in reversed(pattern.findall(uri)):
            try:
                return [date(*map(int, parts))]
            except ValueError:
                continue
    return []


def _fixed_part(path: str) -> str:
    """The part of a path before its first wildcard, up to a slash; the whole path, with a slash, where it has none."""
    if not glob.has_magic(path):
        return path.rstrip("/") + "/"
    return path[: re.search(r"[*?\[]", path).start()].rpartition("/")[0] + "/"


def is_skipped(relative: str) -> bool:
    """Whether a key, or a part of it, is hidden or still being written."""
    parts = relative.strip("/").split("/")
    return any(part.startswith((".", "_")) for part in parts) or parts[-1].endswith(UNFINISHED)


def _list_local(name: str, uri: str, limit: int) -> list[LogObject]:
    place = Path(uri).expanduser().absolute()
    if place.is_file():
        return [_local_object(name, str(place), place.stat())]
    # Path.glob takes no absolute pattern
    roots = [str(place)] if place.is_dir() else sorted(glob.glob(str(place), recursive=True))  # noqa: PTH207
    fixed = str(place) if place.is_dir() else _fixed_part(str(place))
    found: dict[str, LogObject] = {}
    for root in roots:
        if is_skipped(root.removeprefix(fixed)):
            continue
        if not Path(root).is_dir():
            if Path(root).is_file():
                found[root] = _local_object(name, root, Path(root).stat())
            continue
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(child for child in folders if not is_skipped(child))
            for file in files:
                path = f"{folder}/{file}"
                if not is_skipped(file) and Path(path).is_file():
                    found[path] = _local_object(name, path, Path(path).stat())
            _bounded(name, uri, len(found), limit)
    _bounded(name, uri, len(found), limit)
    return list(found.values())


def _local_object(name: str, path: str, stat: os.stat_result) -> LogObject:
    modified = datetime.fromtimestamp(stat.st_mtime, UTC)
    return LogObject(name, path, stat.st_size, f"{stat.st_size:x}-{stat.st_mtime_ns:x}", modified)


def _list_remote(name: str, uri: str, limit: int) -> list[LogObject]:
    protocol = uri.split("://", 1)[0]
    try:
        filesystem, path = fsspec.url_to_fs(uri)
        if glob.has_magic(path):
            listed = filesystem.glob(path, detail=True)
        elif filesystem.isfile(path):
            listed = {path: filesystem.info(path)}
        else:
            listed = filesystem.find(path, detail=True)
    except (ImportError, ValueError) as error:
        raise SourceError(f"source {name}: {protocol}:// cannot be read here ({error})") from error
    except OSError as error:
        raise SourceError(f"source {name}: {uri} cannot be listed ({error}); check the uri and its access") from error
    fixed = _fixed_part(path)
    found = []
    for key, info in listed.items():
        relative = key.removeprefix(fixed) or key.rpartition("/")[2]
        if info.get("type") == "file" and not is_skipped(relative):
            found.append(_remote_object(name, filesystem.unstrip_protocol(key), info))
            _bounded(name, uri, len(found), limit)
    return found


def _remote_object(name: str, uri: str, info: dict[str, Any]) -> LogObject:
    modified = info.get("LastModified") or info.get("last_modified") or info.get("mtime") or info.get("created")
    if isinstance(modified, int | float):
        modified = datetime.fromtimestamp(modified, UTC)
    elif isinstance(modified, str):
        modified = datetime.fromisoformat(modified)
    elif modified is None:
        modified = datetime.fromtimestamp(0, UTC)
    modified = modified.replace(tzinfo=UTC) if modified.tzinfo is None else modified
    size = int(info.get("size") or 0)
    etag = str(info.get("ETag") or info.get("etag") or info.get("md5Hash") or "").strip('"')
    return LogObject(name, uri, size, etag or f"{size:x}-{int(modified.timestamp() * 1e6):x}", modified)


def listed_object(name: str, filesystem: fsspec.AbstractFileSystem, info: dict[str, Any]) -> LogObject:
    """An entry of a filesystem's own listing as a LogObject, with the uri and etag that list_objects gives it."""
    if isinstance(filesystem, LocalFileSystem):
        path = Path(info["name"])
        return _local_object(name, info["name"], path.stat()) if path.is_file() else LogObject(
            name, info["name"], 0, "", datetime.fromtimestamp(0, UTC)
        )
    return _remote_object(name, filesystem.unstrip_protocol(info["name"]), info)


def _bounded(name: str, uri: str, count: int, limit: int) -> None:
    if count > limit:
        raise SourceError(f"source {name}: more than {limit} objects under {uri}; give a narrower uri")
