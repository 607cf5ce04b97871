"""Rated answers of `millrace chat`: log objects in the lake itself, which every run reads beside the recipe's sources.

    with_chats(lake.root, "tutor", recipe.sources)       # with "millrace_chat": SourceSettings(uri="<lake>/chats/tutor")
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from resources.reading.sources import SourceSettings

NAME = "millrace_chat"
CHATS = "chats"


def chats_of(root: Path, workload: str) -> Path:
    """The folder of a workload's rated answers, below a lake's root."""
    return root / CHATS / workload


def with_chats(root: Path, workload: str, sources: Mapping[str, SourceSettings]) -> dict[str, SourceSettings]:
    """The sources, and the folder of rated answers if there are any."""
    folder = chats_of(root, workload)
    return {**sources, **({NAME: SourceSettings(uri=str(folder.absolute()))} if any(folder.rglob("*.jsonl")) else {})}


def remove_chats(root: Path, workload: str, first: date) -> None:
    """Removes the rated answers of the days before `first`."""
    for day in chats_of(root, workload).glob("dt=*"):
        if day.name < f"dt={first.isoformat()}":
            shutil.rmtree(day)
