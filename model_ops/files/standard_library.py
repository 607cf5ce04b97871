"""Source files of Python's standard library in two disjoint parts, demo traffic and training of the base model `tiny`, by a
fixed hash of the top-level name: so no held-out text of one can leak into the other."""

import hashlib
import sys
import sysconfig
from pathlib import Path
from typing import Literal

Part = Literal["traffic", "base"]

LEFT_OUT = {
    "test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "site-packages", "__pycache__", "pydoc_data",
    "encodings", "this", "antigravity",
}  # fmt: skip
"""Left out: tests, third-party code, and modules that hold data rather than text."""

TRAFFIC_SHARE = 0.5


def part_of(top_level: str) -> Part:
    """The part that a top-level module belongs to; the same on every machine."""
    share = int.from_bytes(hashlib.sha256(top_level.encode()).digest()[:4], "big") / 2**32
    return "traffic" if share < TRAFFIC_SHARE else "base"


def library_sources(part: Part) -> list[Path]:
    """The source files of one part, sorted by path within the library."""
    root = Path(sysconfig.get_path("stdlib"))
    chosen = []
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        top_level = inside.parts[0].removesuffix(".py")
        known = top_level in sys.stdlib_module_names and not LEFT_OUT.intersection(inside.parts)
        if known and part_of(top_level) == part:
            chosen.append(path)
    return chosen
