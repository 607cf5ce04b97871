"""Finds new log objects for a sensor, which looks every minute and nearly always finds none.

    found = watched_objects(tables, "math-tutor", sources, cursor={}, limit=5000)
    found.days, found.digest, found.cursor        # the next tick continues from the cursor

Each tick lists two parts of a source, with one folder in memory, so its cost is bounded whatever the prefix's size: the end,
where writers that name objects by time put new ones, and the next page of a walk over everything, which finds late and
changed ones. Once most objects are known the page is small: a walk takes WALK_TICKS ticks, four hours at one a minute.
Listed objects are compared with hashes of the ledger (known_objects.py), and only those that it lacks with the ledger itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from itertools import islice

from resources.reading.known_objects import KnownObjects
from resources.reading.listing import LogObject
from resources.reading.new_objects import NewObjects
from resources.reading.sources import SourceSettings, objects_after
from resources.tables import Tables

WALK_TICKS = 240
LEAST_PAGE = 500


def watched_objects(
    tables: Tables, workload: str, sources: Mapping[str, SourceSettings], cursor: Mapping[str, str], limit: int
) -> NewObjects:
    """New or changed objects of the listed parts, at most `limit` of each part of a source.

    Raises SourceError for a source that cannot be listed; an empty one has nothing new.
    """
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
