"""The log of answers that were paid for: a run that was killed finds them again by their keys, and asks for none of them twice.

    with AnswerLog(work / "answers.jsonl") as log:
        log.add({"key": "row-7", "tokens": pack_array(tokens)})  # on the disk when this returns
        record = log.find("row-7")                               # None if there is none
        unpack_array(record["tokens"], np.int32)                 # every bit as it was

A record is a line of JSON with its `key`; the first record of a key stays. Memory holds the place of each record and what
`note` takes of it. What a killed process left of a line is cut off. The file may be replaced while it is open
(stores/mirror/pulling.py): whoever replaces it holds its lock, and the next writer opens it again."""

import json
import os
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from model_ops.files import is_at, lock, unlock
from model_ops.jobs import ModelError

Record = dict[str, Any]


def pack_array(array: np.ndarray) -> str:
    """An array's values as text that keeps every bit."""
    return b64encode(array.tobytes()).decode()


def unpack_array(text: str, kind: DTypeLike) -> np.ndarray:
    """The values that `pack_array` wrote, as a flat array of their dtype."""
    return np.frombuffer(b64decode(text), kind)


class AnswerLog:
    """One file, for several threads and processes. note: what memory holds of each record, besides its place; it raises
    ValueError for a record that cannot be read, which is passed over."""

    def __init__(self, path: Path, note: Callable[[Record], Any] = lambda record: None):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._note, self._lock = path, note, threading.RLock()
        self._file = self._open()
        with self._alone():
            self._read_new()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the use of the file. May be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def find(self, key: str) -> Record | None:
        """The record of a key, read from the file; None if there is none yet."""
        with self._lock:
            return json.loads(os.pread(self._file, *self._places[key])) if key in self._places else None

    def add(self, record: Record) -> None:
        """As `add_all`, one record."""
        self.add_all([record])

    def add_all(self, records: Iterable[Record]) -> None:
        """Appends records of different keys and flushes them to the disk; a key that is there already keeps its record. Raises
        ModelError where the disk takes no more, and leaves no part of them then."""
        lines = {record["key"]: json.dumps(record).encode() + b"\n" for record in records}
        with self._lock, self._alone():
            self._read_new()
            new = b"".join(line for key, line in lines.items() if key not in self._places)
            if new:
                self._append(new)
                self._read_new()

    def _append(self, lines: bytes) -> None:
        end = os.fstat(self._file).st_size
        try:
            with os.fdopen(os.dup(self._file), "ab") as file:
                file.write(lines)
                file.flush()
                os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, end)
            raise ModelError(
                f"{self.path} takes no more answers ({error.strerror}): free disk space, and the same command continues"
            ) from error

    def _open(self) -> int:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._places: dict[str, tuple[int, int]] = {}
        """Key -> (length of its line, where it begins), in bytes."""
        self.notes: dict[str, Any] = {}
        """Key -> its note, in the order of the file."""
        self._seen = 0
        return file

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds the file's kernel lock, which a killed process loses."""
        while True:
            lock(self._file)
            if is_at(self._file, self.path):
                break
            os.close(self._file)
            self._file = self._open()
        try:
            yield
        finally:
            unlock(self._file)

    def _read_new(self) -> None:
        """Notes the lines that this or another process appended, and cuts off a line that a killed one left unfinished."""
        with os.fdopen(os.dup(self._file), "rb") as lines:
            lines.seek(self._seen)
            for line in lines:
                if not line.endswith(b"\n"):
                    os.ftruncate(self._file, self._seen)
                    break
                record = _record(line)
                if record is not None and record["key"] not in self._places:
                    with suppress(ValueError):
                        self.notes[record["key"]] = self._note(record)
                        self._places[record["key"]] = len(line), self._seen
                self._seen += len(line)


def _record(line: bytes) -> Record | None:
    """None for a line that an earlier version left unfinished and ended later."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "key" in record else None
