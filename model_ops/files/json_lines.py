"""A file to which lines of JSON are appended, one by one, and which a kill does not harm.

    lines = JsonLines(work / "sampled.jsonl")
    for place, record in lines.read(): ...      # what earlier runs added, one at a time
    place = lines.add({"round": 0})             # on the disk when it returns
    lines.at(place)                             # {"round": 0}

A line that a kill cut short is removed when the file is opened again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class JsonLines:
    """The file of one writer. A place is where a line begins, in bytes."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.seek(0)
            whole = sum(len(line) for line in file if line.endswith(b"\n"))
        os.truncate(path, whole)

    def read(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(place, record) of each line."""
        begin = 0
        with self.path.open("rb") as file:
            for line in file:
                yield begin, json.loads(line)
                begin += len(line)

    def at(self, place: int) -> dict[str, Any]:
        """The record of one line."""
        with self.path.open("rb") as file:
            file.seek(place)
            return json.loads(file.readline())

    def add(self, record: dict[str, Any]) -> int:
        """Appends a record; returns its place. Raises OSError if the disk is full, and leaves nothing of the record then."""
        place = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("ab") as file:
                file.write(json.dumps(record).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            os.truncate(self.path, place)
            raise
        return place
