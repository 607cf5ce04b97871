"""What a log format is to the reader: a name, a way to recognise its records, and what its SQL fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """`fills` names the SQL files under sql/ingest/<name>/: interactions, feedback, or both."""

    name: str
    recognises: Callable[[dict], bool]
    fills: tuple[str, ...] = ("interactions",)
