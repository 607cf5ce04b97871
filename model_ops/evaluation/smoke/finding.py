"""Result of one check of the smoke set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Result of one smoke check."""

    name: str
    passed: bool | None
    """None if the check could not be made with this server, and `said` says why."""
    said: str
    """Details without any text of users: ids of rows, and numbers."""
