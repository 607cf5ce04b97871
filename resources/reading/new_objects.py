"""Finds new log objects, a page at a time; watched_objects.py does so for a sensor, every minute.

    found = new_objects(tables, "math-tutor", sources, cursor={}, limit=5000)
    found.days, found.digest, found.cursor        # the next page continues from the cursor

A directory is walked in key order with one folder in memory, so one page costs a bounded listing whatever the prefix's size.
Nothing is written: the run that the sensor requests keeps the ledger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice

from resources.reading.ledger import listed_table
from resources.reading.listing import LogObject
from resources.reading.sources import SourceSettings, days_in, objects_after
from resources.sql_files import attach_slice, run, workbench
from resources.tables import Tables


@dataclass(frozen=True)
class NewObjects:
    """New or changed objects of one page of each source."""

    objects: int
    days: list[date]
    """Of their records, as far as they are known: named by keys, or by a run that looked into the objects, else the day on
    which an object was written."""
    digest: str
    """Identifies the objects, their days and the settings to read them with."""
    cursor: dict[str, str]

    @classmethod
    def among(cls, listed: Sequence[LogObject], tables: Tables, workload: str, sources: Mapping[str, SourceSettings],
              cursor: dict[str, str]) -> NewObjects:
        """Those of the listed objects that the ledger does not have as read."""
        new: list[tuple[LogObject, list[date]]] = []
        with workbench() as connection:
            attach_slice(connection, tables, "objects", workload)
            for name, source in sources.items():
                connection.register("listed", listed_table([item for item in listed if item.source == name]))
                found = run(connection, "reading/ledger/not_read", read_as=source.read_as).fetchall()
                for *row, days in found:
                    item = LogObject(*row)
                    new.append((item, sorted(days or days_in(item.uri) or [item.modified.date()])))
        new.sort(key=lambda each: each[0].uri)
        lines = "".join(f"{item.uri}\0{item.etag}\0{sources[item.source].read_as}\0{','.join(map(str, days))}\n"
                        for item, days in new)
        all_days = {day for _, days in new for day in days}
        return cls(len(new), sorted(all_days), hashlib.sha256(lines.encode()).hexdigest(), cursor)


def new_objects(
    tables: Tables, workload: str, sources: Mapping[str, SourceSettings], cursor: Mapping[str, str], limit: int
) -> NewObjects:
    """Lists up to `limit` objects of each source after its cursor. A source that was listed to its end starts over.

    Raises SourceError for a source that cannot be listed; an empty one has nothing new.
    """
    listed: list[LogObject] = []
    after = {}
    for name, source in sources.items():
        page = list(islice(objects_after(name, source, cursor.get(name, "")), limit))
        if len(page) == limit:
            after[name] = page[-1].uri
        listed += page
    return NewObjects.among(listed, tables, workload, sources, after)
