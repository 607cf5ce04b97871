"""Finds new log objects for a sensor, a page at a time.

    found = new_objects(tables, "math-tutor", sources, cursor={}, limit=5000)
    found.days, found.digest, found.cursor        # the next tick continues from the cursor

A directory is walked in key order with one folder in memory, so one tick costs a bounded listing whatever the prefix's size.
Nothing is written: the run that the sensor requests keeps the ledger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from itertools import islice

from resources.reading.ledger import listed_table
from resources.reading.sources import LogObject, SourceSettings, days_in, objects_after
from resources.sql_files import attach_slice, run, workbench
from resources.tables import Tables


@dataclass(frozen=True)
class NewObjects:
    """New or changed objects of one page of each source. `digest` identifies the objects and the settings to read them with."""

    objects: int
    days: list[date]
    digest: str
    cursor: dict[str, str]


def new_objects(
    tables: Tables, workload: str, sources: Mapping[str, SourceSettings], cursor: Mapping[str, str], limit: int
) -> NewObjects:
    """Lists up to `limit` objects of each source after its cursor. A source that was listed to its end starts over.

    Raises SourceError for a source that cannot be listed; an empty one has nothing new.
    """
    new: list[LogObject] = []
    after = {}
    with workbench() as connection:
        attach_slice(connection, tables, "objects", workload)
        for name, source in sources.items():
            page = list(islice(objects_after(name, source, cursor.get(name, "")), limit))
            if len(page) == limit:
                after[name] = page[-1].uri
            connection.register("listed", listed_table(page))
            found = run(connection, "reading/ledger/not_read", read_as=source.read_as).fetchall()
            new += [LogObject(*row) for row in found]
    new.sort(key=lambda item: item.uri)
    lines = "".join(f"{item.uri}\0{item.etag}\0{sources[item.source].read_as}\n" for item in new)
    days = {day for item in new for day in days_in(item.uri) or [item.modified.date()]}
    return NewObjects(len(new), sorted(days), hashlib.sha256(lines.encode()).hexdigest(), after)
