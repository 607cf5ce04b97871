"""What a mirror knows of its bucket: for each object its etag, and whether and how its file lies here. Several processes of a
machine share it."""

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TABLE = """
create table if not exists objects (
    path text primary key, etag text not null, bytes integer not null, here integer not null, size integer not null,
    modified_ns integer not null, used_at real not null
)
"""
LINES = """
create table if not exists lines (path text not null, sha256 blob not null, primary key (path, sha256)) without rowid
"""
PATIENCE_S = 60


@dataclass(frozen=True)
class Object:
    """An object as this machine last saw it."""

    path: str
    etag: str
    bytes: int
    is_here: bool
    """Whether there was a file."""
    size: int
    modified_ns: int
    """size, modified_ns: of the file, when it agreed with the object."""
    used_at: float
    """When the file was last needed."""

    def is_unchanged(self, file: Path) -> bool:
        """Whether the file is still as it was when it agreed with the object."""
        try:
            status = file.stat()
        except OSError:
            return False
        return self.is_here and (status.st_size, status.st_mtime_ns) == (self.size, self.modified_ns)


class MirrorIndex:
    """The table of known objects."""

    def __init__(self, place: Path):
        place.parent.mkdir(parents=True, exist_ok=True)
        self._place = place
        with self._open() as connection:
            connection.execute("pragma journal_mode = wal")
            connection.execute(TABLE)
            connection.execute(LINES)

    def of(self, under: str = "") -> dict[str, Object]:
        with self._open() as connection:
            entries = connection.execute(
                "select path, etag, bytes, here, size, modified_ns, used_at from objects where path >= ? and path < ?",
                (under, f"{under}\U0010ffff"),
            ).fetchall()
        return {row[0]: Object(row[0], row[1], row[2], bool(row[3]), *row[4:]) for row in entries}

    def get(self, path: str) -> Object | None:
        return self.of(path).get(path)

    def note(self, path: str, etag: str, size: int, status: os.stat_result | None) -> None:
        self.note_all([(path, etag, size, status)])

    def note_all(self, objects: Iterable[tuple[str, str, int, os.stat_result | None]]) -> None:
        """Notes objects: path, etag, bytes, and the status of the file that agrees with it; None where it is not here."""
        now = time.time()
        rows = [
            (path, etag, size, status is not None, status.st_size if status else 0, status.st_mtime_ns if status else 0, now)
            for path, etag, size, status in objects
        ]
        with self._open() as connection:
            connection.executemany("insert or replace into objects values (?, ?, ?, ?, ?, ?, ?)", rows)

    def note_grown(self, path: str, etag: str, size: int) -> None:
        """Notes an object whose file here holds more than the object does, which is to be published."""
        with self._open() as connection:
            connection.execute(
                "insert or replace into objects values (?, ?, ?, ?, ?, ?, ?)", (path, etag, size, True, 0, 0, time.time())
            )

    def lines_of(self, path: str) -> set[bytes]:
        """Digests of the lines that an object had when this machine last saw it."""
        with self._open() as connection:
            return {digest for (digest,) in connection.execute("select sha256 from lines where path = ?", (path,))}

    def note_lines(self, path: str, digests: Iterable[bytes]) -> None:
        with self._open() as connection:
            connection.execute("delete from lines where path = ?", (path,))
            connection.executemany("insert or ignore into lines values (?, ?)", ((path, digest) for digest in digests))

    def used(self, paths: Iterable[str]) -> None:
        with self._open() as connection:
            connection.executemany("update objects set used_at = ? where path = ?", [(time.time(), path) for path in paths])

    def forget(self, paths: Iterable[str]) -> None:
        gone = list(paths)
        with self._open() as connection:
            for table in ("objects", "lines"):
                connection.executemany(f"delete from {table} where path = ?", [(path,) for path in gone])

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._place, timeout=PATIENCE_S)
        try:
            with connection:
                yield connection
        finally:
            connection.close()
