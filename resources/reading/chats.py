"""Rated answers of `millrace chat`: log objects in the lake itself, which every run reads beside the recipe's sources."""

import shutil
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from resources.sources import SourceSettings

CHATS_SOURCE = "millrace_chat"
CHATS = "chats"


def chats_of(root: Path, workload: str) -> Path:
    return root / CHATS / workload


def with_chats(root: Path, workload: str, sources: Mapping[str, SourceSettings]) -> dict[str, SourceSettings]:
    """The sources, and the folder of rated answers if there are any."""
    folder = chats_of(root, workload)
    return {**sources, **({CHATS_SOURCE: SourceSettings(uri=str(folder.absolute()))} if any(folder.rglob("*.jsonl")) else {})}


def old_chats(root: Path, workload: str, first: date | None) -> list[Path]:
    """The rated answers of the days before `first`."""
    if first is None:
        return []
    return [path for path in chats_of(root, workload).glob("dt=*/*.jsonl") if path.parent.name < f"dt={first.isoformat()}"]


def remove_chats(root: Path, workload: str, first: date | None) -> None:
    for day in {path.parent for path in old_chats(root, workload, first)}:
        shutil.rmtree(day)
