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
from collections.abc import Collection, Sequence
from datetime import date

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from resources.commit import attach_tables, commit
from resources.ledger import Entry, Ledger
from resources.sources import SourceSettings, list_objects
from resources.sql_files import attach_slice, rows, run, workbench
from resources.staging import Batch, Staging, staging
from resources.tables import Tables


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
    """Records of a day or in all. repeated, erased and skipped (no interactions: an HTTP span, say) are the dropped ones;
    feedback that is no record of its own (the reward in an agent's trajectory) is in `attached_feedback`."""

    model_config = ConfigDict(extra="forbid")

    objects: int = 0
    kept: int = 0
    repeated: int = 0
    erased: int = 0
    skipped: int = 0
    quarantined: int = 0
    feedback: int = 0
    attached_feedback: int = 0

    @property
    def read(self) -> int:
        return self.kept + self.repeated + self.erased + self.skipped + self.quarantined + self.feedback

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
    if losers := _losers(tables, ledger, wanted, sources):
        for entry in losers:  # should this run be killed, they have to be read by the next one
            ledger.update(entry, state="found")
        ledger.save(tables)
        wanted += losers
    report = IngestReport()
    with staging(workload, sources) as stage:
        attach_tables(tables, stage, workload, sources)
        stage.connection.register("waiting", pa.table({"uri": pa.array([entry.uri for entry in wanted], pa.string())}))
        run(stage.connection, "ingest/earlier")
        for batch in stage.batches(wanted):
            attach_tables(tables, stage, workload, sources)
            for query in ("reread", "met", "judged"):
                run(stage.connection, f"ingest/{query}")
            _count(stage, batch, report)
            commit(tables, stage)
            found = {uri: counted for uri, *counted in run(stage.connection, "ingest/object_days").fetchall()}
            for entry in batch.read:
                records, own_days = found[entry.uri]
                all_days = tuple(sorted({*own_days, *(entry.days or (entry.fallback_day,))}))
                form = batch.formats.get(entry.uri, "")
                ledger.update(entry, state="read", rows=records, days=all_days, format=form)
            for entry in batch.failed:
                ledger.update(entry, state="failed")
                report.failed_objects.append(entry.uri)
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
            for batch in stage.batches(dayless):
                found = {uri: days for uri, _, days in run(stage.connection, "ingest/object_days").fetchall()}
                for entry in batch.read:
                    ledger.update(entry, days=tuple(found[entry.uri] or (entry.fallback_day,)))
                for entry in batch.failed:
                    ledger.update(entry, days=(entry.fallback_day,), state="failed")
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


def _count(stage: Staging, batch: Batch, report: IngestReport) -> None:
    """Adds the batch to the report. The reader's own count of records has to be the sum of what became of them."""
    counted = Counts()
    fates = run(stage.connection, "ingest/counts").fetchall()
    for day, objects, kept, repeated, erased, skipped, quarantined, feedback, attached in fates:
        counts = Counts(objects=objects, kept=kept, repeated=repeated, erased=erased, skipped=skipped,
                        quarantined=quarantined, feedback=feedback, attached_feedback=attached)
        report.days.setdefault(day, Counts()).add(counts)
        counted.add(counts)
    if counted.read != batch.records:
        raise CountsError(
            f"{batch.records} records were read, but {counted.kept} kept, "
            f"{counted.repeated + counted.erased + counted.skipped} dropped, {counted.quarantined} quarantined and "
            f"{counted.feedback} of feedback make {counted.read}; "
            "this batch was not committed"
        )
    report.total.add(counted)
