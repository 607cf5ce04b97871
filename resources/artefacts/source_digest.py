"""The digest of an operation's own source: its file, the project files it imports, and the SQL it names.

    source_digest("model_ops/operations/sft.py", "sql/curating/curate/candidates.sql")

Only the text is read (ast); nothing is imported. A change anywhere in what an operation runs gives its results a new
version; a change elsewhere does not.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = ("model_ops", "resources", "sql")


@cache
def source_digest(*entries: str) -> str:
    """sha256 over the named files (paths relative to the project; folders mean all their .sql files) and everything
    of the project that the Python files among them import, directly or not."""
    found: set[Path] = set()
    waiting = [PROJECT / entry for entry in entries]
    while waiting:
        path = waiting.pop()
        if path.is_dir():
            waiting.extend(path.rglob("*.sql"))
        elif path not in found:
            found.add(path)
            if path.suffix == ".py":
                waiting.extend(_imports(path))
    digest = hashlib.sha256()
    for path in sorted(found):
        digest.update(path.relative_to(PROJECT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _imports(path: Path) -> list[Path]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    files = []
    for name in names:
        if name.split(".")[0] in PACKAGES:
            place = PROJECT / name.replace(".", "/")
            files.extend(file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file())
    return files
