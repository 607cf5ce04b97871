"""Turns disk errors of every layer (full, read-only, no permission, quota) into one sentence. SQLite, DuckDB, delta-rs, Arrow,
safetensors and the kernel are recognised by their messages in the chain of causes; where one only says that a file could not be
opened or written, a test file is written."""

import errno
import getpass
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from model_ops.jobs import CheckFailed

Kind = Literal["full", "quota", "size", "read_only", "denied", "gone"]

PROBE_BYTES = 1 << 20
"""Bytes of the test file: about as much as Dagster needs to record a run."""

WORDS: tuple[tuple[Kind, str], ...] = (
    ("full", r"No space left on device|database or disk is full|os error 28\b|Errno 28\b"),
    ("quota", r"[Qq]uota exceeded|os error 122\b|Errno 122\b"),
    ("size", r"File too large|os error 27\b|Errno 27\b"),
    ("read_only", r"Read-only file system|readonly database|os error 30\b|Errno 30\b"),
    ("denied", r"os error 13\b|Errno 13\b|Permission denied"),
)
UNSAID = re.compile(r"unable to open database file|disk I/O error|PytorchStreamWriter failed|unexpected pos \d+")
"""Messages of failed writes that do not give the reason."""
NUMBERS: dict[int, Kind] = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "quota",
    errno.EFBIG: "size",
    errno.EROFS: "read_only",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
}
PATH_IN_WORDS = re.compile(r"""["'](/[^"']+)["']""")


class StorageError(CheckFailed):
    """A folder or file cannot be written; the message says which, why, and what is needed."""


@dataclass(frozen=True)
class Refusal:
    """A write that the disk refused, and its path, if the error names it."""

    kind: Kind
    path: Path | None


def storage_sentence(error: Any, place: Path | None) -> str | None:
    """The sentence for an exception, or Dagster's SerializableErrorInfo, that came from writing below `place` or to a
    path that it names. None for any other error. place: None if unknown."""
    refused = refusal(error, place)
    return None if refused is None else _sentence(refused, place)


def refusal(error: Any, place: Path | None) -> Refusal | None:
    """The disk error of the first error in the chain of causes that has one."""
    unsaid = False
    for link in _chain(error):
        words = next(iter(str(getattr(link, "message", None) or link).strip().splitlines()), "")  # the rest is SQL and traces
        named = _path_of(link, words)
        kind = NUMBERS.get(link.errno or 0) if isinstance(link, OSError) else None
        kind = kind or next((each for each, pattern in WORDS if re.search(pattern, words)), None)
        if kind == "denied" and named is None and "sqlite" not in words.lower() and "IO Error" not in words:
            continue  # servers such as S3 use these words for their objects
        if kind is not None:
            return Refusal(kind, named)
        unsaid = unsaid or bool(UNSAID.search(words))
    return _tried(place) if unsaid and place is not None else None


def require_writable(place: Path) -> None:
    """Writes and removes a small file below `place`. Raises StorageError if that fails."""
    tried = _tried(place)
    if tried is not None:
        raise StorageError(_sentence(tried, place))


def _tried(place: Path) -> Refusal | None:
    """The disk's error for a small file in `place`. The file has no name, so nothing is left."""
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except FileNotFoundError:
        return Refusal("gone", place)
    except OSError as error:
        if error.errno not in NUMBERS:
            raise
        return Refusal(NUMBERS[error.errno], None)
    return None


def _chain(error: Any) -> Iterator[Any]:
    """An error and its causes, outermost first; an exception or Dagster's record of one."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        raised = isinstance(error, BaseException)
        error = error.__cause__ or error.__context__ if raised else error.cause or error.context


def _path_of(link: Any, words: str) -> Path | None:
    if isinstance(link, OSError) and isinstance(link.filename, str | os.PathLike):
        return Path(link.filename).absolute()
    named = PATH_IN_WORDS.search(words)
    return Path(named[1]) if named else None


def _sentence(refusal: Refusal, place: Path | None) -> str:
    """A sentence: the path, the problem, the remedy, and that nothing is lost."""
    where = refusal.path or place
    if where is None:
        subject, lake = "where this command writes", None
    else:
        lake = next((folder for folder in (where, *where.parents) if os.access(folder / "lake.json", os.F_OK)), None)
        subject = f"the lake {lake}" if lake else str(where)
    resume = "Finished steps are kept and nothing is lost: then run the same command again."
    reading = " As it is, sql, lineage and why can read it." if lake else ""
    if refusal.kind == "gone":
        return f"there is no folder {where}, or no longer: it may have been moved or deleted while it was in use; put it back"
    if refusal.kind == "full":
        return f"the disk of {subject} is full{_room(where)}: free some space there. {resume}"
    if refusal.kind == "quota":
        return f"the disk quota of {_user()} for {subject} is used up: free some space there, or ask for more. {resume}"
    if refusal.kind == "size":
        return f"a file in {subject} would be larger than allowed here (ulimit -f): raise that limit. {resume}"
    if refusal.kind == "read_only":
        return f"{subject} is on a read-only file system: mount it writable, or name another place.{reading} {resume}"
    return f"user {_user()} may not read or write {subject}: change its permissions, or name another place.{reading} {resume}"


def _room(where: Path | None) -> str:
    """Free space on the disk of a path that may not exist yet, as text."""
    if where is None:
        return ""
    there = next(folder for folder in (where, *where.parents) if os.access(folder, os.F_OK))
    usage, counts = shutil.disk_usage(there), os.statvfs(there)
    if counts.f_files and not counts.f_favail:
        return " (no file can be added: all its inodes are in use)"
    return f" ({_bytes(usage.free)} of {_bytes(usage.total)} are left)"


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count = count / 1000
    return f"{count:,.3g} TB"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in many containers
        return str(os.getuid())
