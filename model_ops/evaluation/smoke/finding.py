"""What one check of the smoke set found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """passed: None if the check could not be made with this server, and `said` says why. said: no text of users, only ids of
    rows and numbers."""

    name: str
    passed: bool | None
    said: str
