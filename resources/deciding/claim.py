"""Creates a small file that only one process can create, and that is never seen half-written.

    if not claim(path, text):        # it is there already: another process was faster
        ...
"""

from __future__ import annotations

import os
from pathlib import Path


def claim(path: Path, text: str) -> bool:
    """Whether this call created the file. Raises OSError where it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    try:
        os.link(temporary, path)  # fails where it exists
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True
