"""Lists the objects under a uri in key order, a page at a time, and opens none. Hidden and unfinished files and folders (`.x`,
`_x`, `x.tmp`, `x.part`, ...) are skipped. Links to folders are followed, unless they lead into what is being listed."""

import glob
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import fsspec
from fsspec.utils import glob_translate

from model_ops.jobs import Misuse
from stores import s3
from stores.s3 import CONNECT_SECONDS, READ_SECONDS

WEB = ("http://", "https://")


class RemoteError(OSError):
    """The filesystem failed; the message names no uri."""


def filesystem_of(uri: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The filesystem of a uri and the path in it. Raises ImportError or ValueError if there is none."""
    options: dict[str, Any] = {}
    if uri.startswith(WEB):
        import aiohttp

        options["client_kwargs"] = {"timeout": aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)}
    return fsspec.url_to_fs(uri, **options)


def info_of(filesystem: fsspec.AbstractFileSystem, path: str) -> dict[str, Any] | None:
    """Metadata of a file or folder; None where it does not exist. Raises RemoteError. fsspec reports an unreachable web server
    like a missing page; this function distinguishes them."""
    try:
        with in_words():
            return filesystem.info(path)
    except FileNotFoundError as error:
        cause = error.__cause__
        if cause is not None and not isinstance(cause, FileNotFoundError) and getattr(cause, "status", None) not in (404, 410):
            raise RemoteError(_said(cause)) from None
        return None


def open_remote(uri: str) -> io.RawIOBase:
    """A binary file, read from beginning to end. Opening and reading raise OSError."""
    with in_words():
        filesystem, path = filesystem_of(uri)
        return _Read(filesystem.open(path, "rb"))


class _Read(io.RawIOBase):
    def __init__(self, file: Any):
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with in_words():
            content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextmanager
def in_words() -> Iterator[None]:
    """Turns a filesystem library's errors into RemoteError; FileNotFoundError stays."""
    try:
        yield
    except (FileNotFoundError, ImportError, RemoteError):
        raise
    except Exception as error:  # fsspec's libraries raise errors of any type
        raise RemoteError(_said(error)) from None


def _said(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "the server does not answer"
    status = getattr(error, "status", None) or getattr(error, "code", None)
    return f"the server refused ({status})" if isinstance(status, int) else f"it cannot be had ({type(error).__name__})"


HIDDEN = (".", "_")
UNFINISHED = (".tmp", ".part", ".partial", ".crdownload", ".inprogress", "~")


class SourceError(Misuse):
    """A source of the recipe cannot be listed or read; the message says what to change."""


@dataclass(frozen=True, slots=True)
class LogObject:
    """One object as listed."""

    source: str
    uri: str
    bytes: int
    etag: str
    """Changes whenever the content may have changed."""
    modified: datetime


def is_skipped(relative: str) -> bool:
    key = relative.strip("/")
    return key.startswith(HIDDEN) or key.endswith(UNFINISHED) or any(f"/{mark}" in key for mark in HIDDEN)


def local_objects(name: str, place: str, after: str = "") -> Iterator[LogObject]:
    """Files under a directory, a file, or the matches of a glob. `place` is absolute, as local_path returns it."""
    path = Path(place)
    if path.is_file():
        yield from _one_file(name, str(path), after)
        return
    if path.is_dir():
        yield from _folder(name, str(path), after)
        return
    fixed, inside = _fixed_part(str(path)), ""
    # Path.glob takes no absolute pattern
    matches = glob.glob(str(path), recursive=True)  # noqa: PTH207
    for root in sorted(each.rstrip("/") + "/" if Path(each).is_dir() else each for each in matches):
        if (inside and root.startswith(inside)) or is_skipped(root.removeprefix(fixed)):
            continue
        if root.endswith("/"):
            inside = root
            yield from _folder(name, root.rstrip("/"), after)
        else:
            yield from _one_file(name, root, after)


def remote_objects(name: str, uri: str, after: str = "") -> Iterator[LogObject]:
    if uri.startswith(s3.SCHEMES):
        yield from _s3_objects(name, uri, after)
        return
    filesystem, root = filesystem_of(uri)
    filesystem.invalidate_cache()  # a cached listing may lack newer objects
    if glob.has_magic(root):
        with in_words():
            matches = filesystem.glob(root, detail=True)
        infos = (matches[key] for key in sorted(matches) if not is_skipped(key.removeprefix(_fixed_part(root))))
        items = (_remote_object(name, filesystem, info) for info in infos if info["type"] == "file")
        yield from (item for item in items if item.uri > after)
    elif (info := info_of(filesystem, root)) is None:
        return
    elif info["type"] == "file":
        item = _remote_object(name, filesystem, info)
        if item.uri > after and not is_skipped(root.rpartition("/")[2]):
            yield item
    else:
        yield from _remote_folder(name, filesystem, root, after)


def _fixed_part(path: str) -> str:
    """The part of a path before its first wildcard, up to a slash; without a wildcard the whole path and a slash."""
    if not glob.has_magic(path):
        return path.rstrip("/") + "/"
    return re.split(r"[*?\[]", path, maxsplit=1)[0].rpartition("/")[0] + "/"


def _one_file(name: str, path: str, after: str, entry: os.DirEntry | Path | None = None) -> Iterator[LogObject]:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise SourceError(
            f"source {name}: the file name {path!r} is not UTF-8 text, as names in tables have to be: rename "
            "it (convmv -f latin1 -t utf-8 does so), or give a uri that leaves it out"
        ) from None
    if path > after:
        try:
            stat = (entry or Path(path)).stat()
        except FileNotFoundError:  # removed since its folder was listed
            return
        modified = datetime.fromtimestamp(stat.st_mtime, UTC)
        yield LogObject(name, path, stat.st_size, f"{stat.st_size:x}-{stat.st_mtime_ns:x}", modified)


def _folder(name: str, folder: str, after: str, trees: tuple[Path, ...] = ()) -> Iterator[LogObject]:
    """`trees`: the folders being listed, without links: the source's own, and those that links led to."""
    trees = trees or (Path(folder).resolve(),)
    with os.scandir(folder) as children:
        entries = [(child, _ending(child)) for child in children if not is_skipped(child.name)]
        names = sorted(((child.name + ending, child) for child, ending in entries if ending is not None), key=itemgetter(0))
    within = folder.rstrip("/")
    for child, entry in names:
        path = f"{within}/{child}"
        if not child.endswith("/"):
            yield from _one_file(name, path, after, entry)
        elif not after or after < path or after.startswith(path):
            if not entry.is_symlink():
                yield from _folder(name, path.rstrip("/"), after, trees)
                continue
            tree = Path(path).resolve()
            if not any(tree.is_relative_to(other) or other.is_relative_to(tree) for other in trees):
                yield from _folder(name, path.rstrip("/"), after, (*trees, tree))


def _ending(child: os.DirEntry) -> str | None:
    """A slash for a folder, nothing for a file, None for neither: a pipe, a broken or circular link."""
    if not child.is_symlink():
        return "/" if child.is_dir() else "" if child.is_file() else None
    path = Path(child.path)
    return "/" if path.is_dir() else "" if path.is_file() else None


def _s3_objects(name: str, uri: str, after: str) -> Iterator[LogObject]:
    bucket, key = s3.parts(uri)
    start = s3.parts(after)[1] if after else ""
    if not glob.has_magic(key):
        for item in s3.objects(bucket, key, start):
            relative = item.key.removeprefix(key.rstrip("/") + "/") if item.key != key else key.rpartition("/")[2]
            if not is_skipped(relative):
                yield LogObject(name, f"s3://{bucket}/{item.key}", item.bytes, item.etag, item.modified)
        return
    # as for local files, a folder that the pattern names is listed in full
    pattern = re.compile(glob_translate(key.rstrip("/")).removesuffix(r"\Z") + r"(?:/.*)?\Z", re.DOTALL)
    fixed = _fixed_part(f"/{key}").removeprefix("/")
    for item in s3.objects(bucket, fixed, start):
        if pattern.match(item.key) and not is_skipped(item.key.removeprefix(fixed)):
            yield LogObject(name, f"s3://{bucket}/{item.key}", item.bytes, item.etag, item.modified)


def _remote_folder(name: str, filesystem: fsspec.AbstractFileSystem, folder: str, after: str) -> Iterator[LogObject]:
    def order(info: dict[str, Any]) -> str:
        return info["name"].rstrip("/") + ("/" if info["type"] == "directory" else "")

    with in_words():
        inside_folder = filesystem.ls(folder, detail=True)
    for info in sorted(inside_folder, key=order):
        if is_skipped(info["name"].rstrip("/").rpartition("/")[2]):
            continue
        if info["type"] == "directory":
            inside = filesystem.unstrip_protocol(order(info))
            if not after or after < inside or after.startswith(inside):
                yield from _remote_folder(name, filesystem, info["name"], after)
        else:
            item = _remote_object(name, filesystem, info)
            if item.uri > after:
                yield item


def _remote_object(name: str, filesystem: fsspec.AbstractFileSystem, info: dict[str, Any]) -> LogObject:
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
    uri = filesystem.unstrip_protocol(info["name"])
    return LogObject(name, uri, size, etag or f"{size:x}-{int(modified.timestamp() * 1e6):x}", modified)
