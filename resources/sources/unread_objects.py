"""Finds log objects that are new or changed, for a sensor. Each tick lists two parts of a source: the end, where writers that
name objects by time put new ones, and the next page of a walk over everything, which takes WALK_TICKS ticks. Listed objects are
compared with sorted 64-bit hashes of what was read (KnownObjects), and only those that it lacks with the ledger itself."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path

import numpy as np

from model_ops.files import renamed_when_complete, write_text
from resources.lake import Tables, attach_slice, rows, run, slice_stamp, workbench
from resources.sources.ledger import listed_table
from resources.sources.listing import LogObject
from resources.sources.sources import SourceSettings, days_in, objects_after

WALK_TICKS = 240
LEAST_PAGE = 500


def watched_objects(
    tables: Tables, workload: str, sources: Mapping[str, SourceSettings], cursor: Mapping[str, str], limit: int
) -> NewObjects:
    """New or changed objects of the listed parts, at most `limit` of each part of a source. Raises SourceError for a source
    that cannot be listed; an empty one has nothing new."""
    known = KnownObjects.of(tables, workload)
    page = min(limit, max(LEAST_PAGE, math.ceil(len(known) / WALK_TICKS))) if len(known) else limit
    listed: dict[tuple[str, str], LogObject] = {}
    after: dict[str, str] = {}
    for name, source in sources.items():
        walked = list(islice(objects_after(name, source, cursor.get(name, "")), page))
        if len(walked) == page:
            after[name] = walked[-1].uri
        end = known.ends.get(name, "")
        last = islice(objects_after(name, source, end), limit) if end and not (walked and walked[-1].uri >= end) else ()
        listed |= {(name, item.uri): item for item in (*walked, *last)}
    unknown = known.lacks(list(listed.values()), sources)
    if not unknown:
        return NewObjects(0, [], hashlib.sha256().hexdigest(), after)
    return NewObjects.among(unknown, tables, workload, sources, after)


END = 50
"""Objects at the end of a source, where writers that name objects by time put new ones."""
_EMPTY = np.empty(0, np.uint64)


class KnownObjects:
    """Hashes of one workload's objects."""

    def __init__(self, hashes: np.ndarray, ends: Mapping[str, str]):
        self._hashes, self.ends = hashes, ends

    @classmethod
    def of(cls, tables: Tables, workload: str) -> KnownObjects:
        """Those of the ledger as it is now."""
        stamp = slice_stamp(tables, "objects", workload)
        if not stamp:
            return cls(_EMPTY, {})
        path = tables.lake.root / ".remembered" / "known_objects" / workload / f"{stamp}.npy"
        with suppress(OSError, ValueError):
            return cls(np.load(path, mmap_mode="r"), json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))
        hashes, ends = _of_ledger(tables, workload)
        _keep(path, hashes, ends)
        return cls(hashes, ends)

    def __len__(self) -> int:
        return len(self._hashes)

    def lacks(self, listed: Sequence[LogObject], sources: Mapping[str, SourceSettings]) -> list[LogObject]:
        """The listed objects that were not read as they are now with these settings."""
        if not len(self._hashes) or not listed:
            return list(listed)
        read_as = {name: source.read_as for name, source in sources.items()}
        hashes = np.fromiter((_hash(item, read_as[item.source]) for item in listed), np.uint64, len(listed))
        places = np.searchsorted(self._hashes, hashes)
        missing = self._hashes[np.minimum(places, len(self._hashes) - 1)] != hashes
        return [item for item, lacks in zip(listed, missing.tolist(), strict=True) if lacks]


def _hash(item: LogObject, read_as: str) -> int:
    """As the statement reading/ledger/known_hashes makes it."""
    text = f"{item.source}\n{item.uri}\n{item.etag}\n{item.bytes}\n{read_as}"
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[8:], "little")


def _of_ledger(tables: Tables, workload: str) -> tuple[np.ndarray, dict[str, str]]:
    with workbench() as connection:
        attach_slice(connection, tables, "objects", workload)
        table = rows(connection, "reading/ledger/known_hashes")
        ends = dict(run(connection, "reading/ledger/ends", count=END).fetchall())
    return np.sort(table["hash"].to_numpy()), ends


def _keep(path: Path, hashes: np.ndarray, ends: Mapping[str, str]) -> None:
    """Writes the files and removes those of earlier commits. A lake that cannot be written keeps none."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path.with_suffix(".json"), json.dumps(ends))
        with renamed_when_complete(path) as temporary, temporary.open("wb") as file:
            np.save(file, hashes)
        for old in path.parent.glob("*.*"):
            if old.stem != path.stem and not old.name.startswith("."):
                old.unlink(missing_ok=True)


@dataclass(frozen=True)
class NewObjects:
    """New or changed objects of one page of each source."""

    objects: int
    days: list[date]
    """Of their records, as keys or a run that looked into the objects name them, else the day on which one was written."""
    digest: str
    """Identifies the objects, their days and the settings to read them with."""
    cursor: dict[str, str]

    @classmethod
    def among(
        cls,
        listed: Sequence[LogObject],
        tables: Tables,
        workload: str,
        sources: Mapping[str, SourceSettings],
        cursor: dict[str, str],
    ) -> NewObjects:
        """Those of the listed objects that the ledger does not have as read."""
        new: list[tuple[LogObject, list[date]]] = []
        with workbench() as connection:
            attach_slice(connection, tables, "objects", workload)
            for name, source in sources.items():
                connection.register("listed", listed_table([item for item in listed if item.source == name]))
                unread = run(connection, "reading/ledger/not_read", read_as=source.read_as).fetchall()
                for *row, days in unread:
                    item = LogObject(*row)
                    new.append((item, sorted(days or days_in(item.uri) or [item.modified.date()])))
        new.sort(key=lambda each: each[0].uri)
        lines = "".join(
            f"{item.uri}\0{item.etag}\0{sources[item.source].read_as}\0{','.join(map(str, days))}\n" for item, days in new
        )
        all_days = {day for _, days in new for day in days}
        return cls(len(new), sorted(all_days), hashlib.sha256(lines.encode()).hexdigest(), cursor)


def new_objects(
    tables: Tables, workload: str, sources: Mapping[str, SourceSettings], cursor: Mapping[str, str], limit: int
) -> NewObjects:
    """Lists up to `limit` objects of each source after its cursor. A source that was listed to its end starts over. Raises
    SourceError for a source that cannot be listed; an empty one has nothing new."""
    listed: list[LogObject] = []
    after = {}
    for name, source in sources.items():
        page = list(islice(objects_after(name, source, cursor.get(name, "")), limit))
        if len(page) == limit:
            after[name] = page[-1].uri
        listed += page
    return NewObjects.among(listed, tables, workload, sources, after)
