"""Joins what several machines keep in one file of paid answers, a line for each answer. The lines that the bucket had when this
machine last saw it are known by their digests: a known line that is missing in the bucket was erased by another machine, and
goes here too; one that is missing here was erased here. All others stay.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from model_ops.files import is_at, lock, replaced
from stores.mirror.bucket import Bucket, Conflict
from stores.mirror.known import MirrorIndex


class PaidAnswers:
    """The files of paid answers of one mirror."""

    def __init__(self, bucket: Bucket, known: MirrorIndex):
        self._bucket, self._known = bucket, known

    def take(self, name: str, path: Path) -> str | None:
        """Joins the object into the file; returns its etag, None if there is none."""
        there = self._bucket.get(name)
        others, etag = there if there is not None else (b"", None)
        with locked(path):
            mine, seen = path.read_bytes(), self._seen(name)
            content = joined(mine, seen, others)
            if not content.startswith(mine):
                with replaced(path) as temporary:
                    temporary.write_bytes(content)
            elif len(content) > len(mine):  # processes may have read the places of the lines before
                with path.open("ab") as file:
                    file.write(content[len(mine) :])
            status = path.stat()
        if etag is None:
            self._known.forget([name])
            return None
        if set(digests_of(content)) <= set(digests_of(others)):
            self._known.note(name, etag, len(others), status)
        else:
            self._known.note_grown(name, etag, len(others))
        self._known.note_lines(name, digests_of(others))
        return etag

    def push(self, name: str, path: Path) -> None:
        """Publishes the file. What other machines published since this one saw the object is joined first."""
        known = self._known.get(name)
        etag = known.etag if known is not None and known.is_here else self.take(name, path)
        while True:
            with locked(path):
                status, content = path.stat(), path.read_bytes()
            try:
                etag = self._bucket.put(name, content, etag)
            except Conflict:
                etag = self.take(name, path)
                continue
            self._known.note(name, etag, len(content), status)
            self._known.note_lines(name, digests_of(content))
            return

    def own(self, name: str, path: Path) -> list[bytes]:
        """The lines of the file that were not published."""
        if (known := self._known.get(name)) is not None and known.is_unchanged(path):
            return []
        with locked(path):
            content = path.read_bytes()
        seen = self._seen(name)
        return [
            line
            for digest, line in zip(digests_of(content), content.splitlines(keepends=True), strict=True)
            if digest not in seen
        ]

    def without(self, path: Path, lines: Collection[bytes]) -> None:
        """Removes lines from the file here."""
        gone = set(lines)
        with locked(path):
            left = [line for line in path.read_bytes().splitlines(keepends=True) if line not in gone]
            with replaced(path) as temporary:
                temporary.write_bytes(b"".join(left))

    def drop(self, name: str, path: Path) -> None:
        """Removes the lines of an object that was removed; the file stays if it has others."""
        with suppress(FileNotFoundError), locked(path):
            left = joined(path.read_bytes(), self._seen(name), b"")
            if left:
                with replaced(path) as temporary:
                    temporary.write_bytes(left)
            else:
                path.unlink()
        self._known.forget([name])

    def _seen(self, name: str) -> set[bytes]:
        """Digests of the lines that the file here and the object had in common."""
        known = self._known.get(name)
        return self._known.lines_of(name) if known is not None and known.is_here else set()


def joined(mine: bytes, seen: set[bytes], others: bytes) -> bytes:
    """The lines of both, without those that one of both has erased. seen: digests of the lines that both had before."""
    if mine and not mine.endswith(b"\n"):
        mine += b"\n"  # a line that a killed process left
    theirs = dict(zip(digests_of(others), others.splitlines(keepends=True), strict=True))
    own = list(zip(digests_of(mine), mine.splitlines(keepends=True), strict=True))
    has = {digest for digest, _ in own}
    own_lines = [line for digest, line in own if digest in theirs or digest not in seen]
    return b"".join([*own_lines, *(line for digest, line in theirs.items() if digest not in has and digest not in seen)])


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the kernel lock of the file, as its writers do. Raises FileNotFoundError."""
    while True:
        with path.open("rb") as file:
            lock(file)
            if is_at(file.fileno(), path):
                yield
                return


def digests_of(content: bytes) -> Iterator[bytes]:
    return (sha256(line).digest() for line in content.splitlines(keepends=True))
