"""The promotion that made the present champion, from the endpoint's log, or why there is none to watch.

    found = promotion_of(entries, aliases)           # Promotion(entry, before="3f2a91c0d4e5"), or a sentence
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resources.releasing.actor import Actor
from resources.releasing.endpoint_log import Entry
from resources.releasing.endpoints import Aliases

WATCH = "millrace watch"
"""The name in the log of whoever rolls back here."""


@dataclass(frozen=True)
class Promotion:
    entry: Entry
    """Log entry of the promotion."""
    before: str
    """The champion that it replaced."""

    @property
    def release(self) -> str:
        return str(self.entry.champion)


def promotion_of(entries: Sequence[Entry], aliases: Aliases) -> Promotion | str:
    """The promotion to watch, or why this champion is not watched: there is none, it is the first, it came by a rollback or by
    hand, or a person restored it after the watch rolled it back."""
    if aliases.champion is None:
        return "no release is served yet"
    moved, before = None, None
    for entry in entries:
        if entry.champion is not None and entry.champion != before:
            moved, before = entry, entry.champion
    if moved is None or moved.champion != aliases.champion:
        return "the endpoint's log does not say how its champion came"
    release = moved.champion
    if moved.action == "rolled back":
        why = f": {moved.reason}" if moved.reason else ""
        return f"release {release} came back by a rollback ({moved.by}, {moved.at:%Y-%m-%d %H:%M} UTC{why})"
    if moved.action != "promoted":
        return f"release {release} was not promoted by an approval ({moved.action} by {moved.by})"
    if any(entry.action == "rolled back" and entry.by == WATCH and entry.replaces == release for entry in entries):
        return f"release {release} was rolled back by {WATCH} before, and a person brought it back: it is not rolled back again"
    if not moved.replaces:
        return f"release {release} is the first champion: there is none to return to"
    return Promotion(moved, moved.replaces)


def watcher(reason: str) -> Actor:
    """Who rolls back, and why."""
    return Actor(WATCH, "release.watch", reason)
