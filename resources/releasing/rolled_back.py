"""The rollback that took a release out of service, from the endpoint's log.

    rollback_of(entries, "3f2a91c0d4e5")         # the entry: who, when, why; None if it was not rolled back last
"""

from __future__ import annotations

from collections.abc import Sequence

from resources.releasing.endpoint_log import Entry, decisions_on


def rollback_of(entries: Sequence[Entry], release: str) -> Entry | None:
    """The last rollback from this release, unless it was approved again since."""
    decisions = [entry for entry in decisions_on(entries, release) if entry.action != "withdrawn"]
    return decisions[-1] if decisions and decisions[-1].action == "rolled back" else None


def said(entry: Entry) -> str:
    """Who rolled back, when and why, as one sentence."""
    return f"rolled back by {entry.by} on {entry.at:%Y-%m-%d %H:%M} UTC" + (f": {entry.reason}" if entry.reason else "")
