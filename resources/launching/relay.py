"""Sends events to the terminal that started a run: one JSON object per line, in the file named by MILLRACE_PROGRESS.

    relay({"event": "note", "message": "..."})
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


def relay(event: dict[str, Any], file: Path | None = None) -> None:
    """Appends an event to the progress file that the starting terminal follows, if there is one. A missing file is ignored, so
    a run whose terminal is gone continues."""
    target = file or (Path(os.environ["MILLRACE_PROGRESS"]) if os.environ.get("MILLRACE_PROGRESS") else None)
    if target is not None:
        with suppress(FileNotFoundError), target.open("a", encoding="utf-8") as out:
            out.write(json.dumps(event) + "\n")
