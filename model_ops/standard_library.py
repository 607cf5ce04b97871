"""The text that every Python has: its standard library, split in two parts that never meet.

    modules("traffic")   source files the demo's logs are made of
    modules("base")      source files the `tiny` base model is trained on

The split is by top-level name (`asyncio`, `json`, ...), by a fixed hash: a base model trained on one part has never
seen a line of the other, so nothing held out from the logs can leak into it.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from pathlib import Path
from typing import Literal

Part = Literal["traffic", "base"]

LEFT_OUT = {
    "test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "site-packages", "__pycache__", "pydoc_data",
    "encodings", "this", "antigravity",
}
"""Tests, other people's code, and modules that are data more than text."""

TRAFFIC_SHARE = 0.5


def part_of(top_level: str) -> Part:
    """Which part a top-level module belongs to, the same on every machine."""
    share = int.from_bytes(hashlib.sha256(top_level.encode()).digest()[:4], "big") / 2**32
    return "traffic" if share < TRAFFIC_SHARE else "base"


def modules(part: Part) -> list[Path]:
    """The source files of one part, sorted by their path inside the library."""
    root = Path(sysconfig.get_path("stdlib"))
    chosen = []
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        top_level = inside.parts[0].removesuffix(".py")
        known = top_level in sys.stdlib_module_names and not LEFT_OUT.intersection(inside.parts)
        if known and part_of(top_level) == part:
            chosen.append(path)
    return chosen
