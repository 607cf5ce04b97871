"""The ledger: which log objects have been seen, and which of them have been read. One row per object in `objects`.

    seen = Ledger.load(tables, "math-tutor")
    new = seen.notice(listed)             # objects that are new or changed: state "found"
    seen.save(tables)                     # one commit

An object is `found` until an ingest has committed all that came of it, then `read`; `failed` when it could not be
opened, and tried again. `days` are those its key names, or its records' own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Literal

import pyarrow as pa

from resources.sources import LogObject, days_in
from resources.sql_files import attach_slice, workbench
from resources.tables import SCHEMAS, Tables


@dataclass(frozen=True)
class Entry:
    """What the ledger knows of one object."""

    source: str
    uri: str
    etag: str
    bytes: int
    modified: datetime
    rows: int | None = None
    days: tuple[date, ...] = ()
    state: Literal["found", "read", "failed"] = "found"
    format: str = ""

    @property
    def fallback_day(self) -> date:
        """The day of records that carry no time: the one in the key, else the object's own."""
        return next(iter(days_in(self.uri)), self.modified.astimezone(UTC).date())


@dataclass
class Ledger:
    """The entries of one workload, by (source, uri)."""

    workload: str
    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)

    @classmethod
    def load(cls, tables: Tables, workload: str) -> Ledger:
        with workbench() as connection:
            attach_slice(connection, tables, "objects", workload)
            rows = connection.table("objects").to_arrow_table().to_pylist()
        ledger = cls(workload)
        for row in rows:
            row.pop("workload")
            entry = Entry(**{**row, "days": tuple(row["days"] or ()), "format": row["format"] or ""})
            ledger.entries[entry.source, entry.uri] = entry
        return ledger

    def notice(self, listed: Iterable[LogObject]) -> list[Entry]:
        """Records what is new or changed, and returns it."""
        new = []
        for item in listed:
            known = self.entries.get((item.source, item.uri))
            if known is None or (known.etag, known.bytes) != (item.etag, item.bytes):
                days = tuple(days_in(item.uri))
                entry = Entry(item.source, item.uri, item.etag, item.bytes, item.modified, days=days)
                self.entries[item.source, item.uri] = entry
                new.append(entry)
        return new

    def update(self, entry: Entry, **changes) -> None:
        self.entries[entry.source, entry.uri] = replace(entry, **changes)

    def unread(self) -> list[Entry]:
        """Entries that wait to be read, by day and uri."""
        return sorted(
            (entry for entry in self.entries.values() if entry.state != "read"), key=lambda e: (e.days, e.source, e.uri)
        )

    def save(self, tables: Tables) -> None:
        """Replaces the workload's ledger, in one commit."""
        rows = [
            {"workload": self.workload, **vars(entry), "days": list(entry.days)}
            for entry in sorted(self.entries.values(), key=lambda entry: (entry.source, entry.uri))
        ]
        tables.replace("objects", pa.Table.from_pylist(rows, schema=SCHEMAS["objects"]), workload=self.workload)
