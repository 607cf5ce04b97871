"""A file to which lines of JSON are appended, one by one, and which a kill does not harm.

    lines = JsonLines(work / "sampled.jsonl")
    lines.records                   # what earlier runs added
    lines.add({"round": 0})         # on the disk when it returns

A line that a kill cut short is removed when the file is opened again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class JsonLines:
    """records: the lines that were there, in order."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            os.truncate(path, len(whole))
        self.records: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]

    def add(self, record: dict[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
