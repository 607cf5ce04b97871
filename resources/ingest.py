"""From logs where they lie to the tables interactions, feedback, quarantine, decisions and objects.

    observe(tables, "math-tutor", sources)                           # what is new, and which days there are
    ingest(tables, "math-tutor", sources)                            # reads what was not read yet
    ingest(tables, "math-tutor", sources, days=[date(2026, 6, 1)])   # of these days only

An object's rows are replaced as a whole when it has changed; the ledger is written after everything else. So a run
killed anywhere and started again ends in the same tables, and reading twice is reading once. Rows of one id are kept
once, the same one whatever the order of reading. Counts are checked in every run: read = kept + dropped + quarantined.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from datetime import date

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from resources.ledger import Entry, Ledger
from resources.sources import SourceSettings, list_objects
from resources.sql_files import attach_files, attach_slice, rows, run, slice_files, workbench
from resources.staging import Staging, staging
from resources.tables import PARTITIONS, SCHEMAS, Tables

BATCH_BYTES = 128 << 20
"""Objects whose listed sizes add up to this are committed together."""


class CountsError(AssertionError):
    """Records were lost or invented between reading and committing: a defect of ours, never to be passed over."""


class Observation(BaseModel):
    """What a listing found. `digest` names the objects that wait to be read: a sensor's run key."""

    model_config = ConfigDict(extra="forbid")

    new_objects: int
    unread_objects: int
    days: list[date]
    digest: str


class Counts(BaseModel):
    """Records of a day or in all. repeated and erased are the dropped ones; feedback that is no record of its own
    (the reward in an agent's trajectory) is in `attached_feedback`."""

    model_config = ConfigDict(extra="forbid")

    objects: int = 0
    kept: int = 0
    repeated: int = 0
    erased: int = 0
    quarantined: int = 0
    feedback: int = 0
    attached_feedback: int = 0

    @property
    def read(self) -> int:
        return self.kept + self.repeated + self.erased + self.quarantined + self.feedback

    def add(self, other: Counts) -> None:
        for name in type(self).model_fields:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class IngestReport(BaseModel):
    """What one ingest read and what became of it."""

    model_config = ConfigDict(extra="forbid")

    total: Counts = Field(default_factory=Counts)
    days: dict[date, Counts] = Field(default_factory=dict)
    failed_objects: list[str] = Field(default_factory=list)


def observe(tables: Tables, workload: str, sources: dict[str, SourceSettings]) -> Observation:
    """Lists the sources and records new and changed objects in the ledger.

    Objects whose key names no day are looked through for their records' days. Raises SourceError for a source with
    nothing under it.
    """
    ledger, new = _noticed(tables, workload, sources, look_for_days=True)
    unread = ledger.unread()
    lines = "".join(f"{entry.source}\0{entry.uri}\0{entry.etag}\n" for entry in sorted(unread, key=lambda e: e.uri))
    return Observation(
        new_objects=new,
        unread_objects=len(unread),
        days=sorted({day for entry in ledger.entries.values() for day in entry.days}),
        digest=hashlib.sha256(lines.encode()).hexdigest(),
    )


def ingest(
    tables: Tables, workload: str, sources: dict[str, SourceSettings], days: Sequence[date] | None = None
) -> IngestReport:
    """Reads what the ledger does not know as read, of the given days where `days` is given.

    Rows land in their own day, whatever day their object is kept under. Raises SourceError for a source with nothing
    under it and CountsError where the counts do not add up; a line or an object that cannot be read raises nothing.
    """
    ledger, _ = _noticed(tables, workload, sources, look_for_days=days is not None)
    wanted = [
        entry for entry in ledger.unread()
        if entry.source in sources and (days is None or not set(days).isdisjoint(entry.days))
    ]
    wanted += _losers(tables, ledger, wanted, sources)
    report = IngestReport()
    with staging(workload, sources) as stage:
        for batch in _batches(wanted):
            failed = stage.read_all(batch)
            _commit(tables, stage, workload, sources, report)
            found = {uri: counted for uri, *counted in run(stage.connection, "ingest/object_days").fetchall()}
            for index, entry in enumerate(batch):
                if entry in failed:
                    ledger.update(entry, state="failed")
                    report.failed_objects.append(entry.uri)
                    continue
                records, own_days = found[entry.uri]
                all_days = tuple(sorted({*own_days, *(entry.days or (entry.fallback_day,))}))
                ledger.update(entry, state="read", rows=records, days=all_days, format=stage.formats.get(index, ""))
            ledger.save(tables)
    return report


def resolved_feedback(tables: Tables, workload: str) -> pa.Table:
    """The workload's feedback beside the interactions it is about, as an Arrow table (sql/ingest/resolved_feedback)."""
    with workbench() as connection:
        attach_slice(connection, tables, "interactions", workload)
        attach_slice(connection, tables, "feedback", workload)
        return rows(connection, "ingest/resolved_feedback")


def _noticed(
    tables: Tables, workload: str, sources: dict[str, SourceSettings], look_for_days: bool
) -> tuple[Ledger, int]:
    """The ledger with what the sources hold now, committed, and the number of new or changed objects."""
    listed = [item for name, source in sources.items() for item in list_objects(name, source)]
    ledger = Ledger.load(tables, workload)
    new = len(ledger.notice(listed))
    dayless = [entry for entry in ledger.unread() if not entry.days and entry.source in sources]
    if look_for_days and dayless:
        with staging(workload, sources) as stage:
            for batch in _batches(dayless):
                failed = stage.read_all(batch)
                found = {uri: days for uri, _, days in run(stage.connection, "ingest/object_days").fetchall()}
                for entry in batch:
                    days = tuple(found.get(entry.uri) or (entry.fallback_day,))
                    ledger.update(entry, days=days, state="failed" if entry in failed else entry.state)
    if new or dayless:
        ledger.save(tables)
    return ledger, new


def _losers(tables: Tables, ledger: Ledger, wanted: list[Entry], sources: Collection[str]) -> list[Entry]:
    """Objects that lost a record to a copy in a wanted one: what is about to be replaced may hold that no more."""
    chosen = {entry.uri for entry in wanted}
    found: list[Entry] = []
    with workbench() as connection:
        attach_slice(connection, tables, "decisions", ledger.workload)
        waiting = chosen
        while waiting:
            lost = {uri for (uri,) in run(connection, "ingest/lost_to", uris=sorted(waiting)).fetchall()}
            waiting = lost - chosen
            chosen = chosen | waiting
            found += [entry for entry in ledger.entries.values() if entry.uri in waiting]
    return [entry for entry in found if entry.source in sources]


def _batches(entries: list[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        if batch and size + entry.bytes > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry.bytes
    if batch:
        yield batch


def _commit(
    tables: Tables, stage: Staging, workload: str, sources: dict[str, SourceSettings], report: IngestReport
) -> None:
    connection = stage.connection
    workloads = sorted({workload, *(name for source in sources.values() for name in source.workloads.values())})
    for name in ("interactions", "feedback", "quarantine", "decisions", "erasures"):
        files = [file for each in workloads for file in slice_files(tables, name, each)]
        attach_files(connection, name, SCHEMAS[name], files, PARTITIONS[name])
    run(connection, "ingest/reread")
    run(connection, "ingest/judged")
    _count(stage, report)
    for table, touched, query in (
        ("interactions", "ingest/touched_days", "ingest/day"),
        ("feedback", "ingest/touched_feedback_days", "ingest/feedback_day"),
    ):
        for each, day in run(connection, touched).fetchall():
            tables.replace(table, rows(connection, query, workload=each, dt=day), workload=each, dt=day)
    tables.replace("quarantine", rows(connection, "ingest/quarantine_table", workload=workload), workload=workload)
    for each in workloads:
        left = rows(connection, "ingest/decisions_table", workload=each)
        tables.replace("decisions", left, workload=each, stage="ingest")


def _count(stage: Staging, report: IngestReport) -> None:
    """Adds the batch to the report. The reader's own count of records has to be the sum of what became of them."""
    batch = Counts()
    fates = run(stage.connection, "ingest/counts").fetchall()
    for day, objects, kept, repeated, erased, quarantined, feedback, attached in fates:
        counts = Counts(objects=objects, kept=kept, repeated=repeated, erased=erased, quarantined=quarantined,
                        feedback=feedback, attached_feedback=attached)
        report.days.setdefault(day, Counts()).add(counts)
        batch.add(counts)
    if batch.read != stage.records_read:
        raise CountsError(
            f"{stage.records_read} records were read, but {batch.kept} kept, {batch.repeated + batch.erased} dropped, "
            f"{batch.quarantined} quarantined and {batch.feedback} of feedback make {batch.read}; "
            "this batch was not committed"
        )
    report.total.add(batch)
