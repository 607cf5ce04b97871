"""Ingests logs in place into the tables interactions, feedback, quarantine, decisions and objects. A changed object's rows are
replaced as a whole, and the ledger is written last: a run that is killed anywhere and started again gives the same tables. Of
rows with the same id one is kept, independent of the order of reading. Every run checks read = kept + dropped + quarantined."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from model_ops.files import lock, try_lock
from model_ops.jobs import counted
from resources.lake import LakeLayout, Tables, run, workbench
from resources.launching import relay
from resources.reading.batches import StagedBatch, Staging, open_staging
from resources.reading.commit import ORDER, attach, commit, decide, find_earlier_rows, keep_key
from resources.reading.pairing import ReadApart, partners_to_reread
from resources.reading.ties import TIES, ties_of
from resources.reading.unread_keys import MOST_UNREAD, MixedWorkloads, UnreadKey, mixed_workloads, sum_keys, unread_text
from resources.records import FORMATS
from resources.sources import Ledger, LedgerEntry, SourceSettings, workloads_of

PAIRED = [name for name, form in FORMATS.items() if form.paired]
"""Formats whose requests and responses lie in different objects."""


class IngestCountsError(AssertionError):
    """Records were lost or counted twice between reading and committing: a defect of millrace."""


class Observation(BaseModel):
    """The state of the sources and the ledger after a listing."""

    model_config = ConfigDict(extra="forbid")

    new_objects: int
    moved_objects: int = 0
    unread_objects: int
    days: list[date]
    """Days of all objects."""
    unread_days: list[date] = Field(default_factory=list)
    """Days of the objects that wait to be read."""
    digest: str
    """Of the uris and contents of the objects that wait to be read: a sensor's run key."""


class IngestCounts(BaseModel):
    """Numbers of records, of one day or in total. Dropped are repeated, erased and skipped records."""

    model_config = ConfigDict(extra="forbid")

    objects: int = 0
    rows: int = Field(default=0, serialization_alias="kept")
    repeated: int = 0
    erased: int = 0
    skipped: int = 0
    """Records that are no interactions, such as an HTTP span."""
    quarantined: int = 0
    feedback: int = 0
    attached_feedback: int = 0
    """Feedback inside an interaction's record, such as the reward of a trajectory."""

    @property
    def read(self) -> int:
        return self.rows + self.repeated + self.erased + self.skipped + self.quarantined + self.feedback

    def add(self, other: IngestCounts) -> None:
        for name in type(self).model_fields:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Reason(BaseModel):
    """A reason why objects left no row: the number of objects, the first of them, and the message."""

    model_config = ConfigDict(extra="forbid")

    objects: int
    first_uri: str
    message: str

    def __str__(self) -> str:
        more = f" and {self.objects - 1:,} more" if self.objects > 1 else ""
        return f"{self.first_uri}{more}: {self.message}"


class IngestReport(BaseModel):
    """What one ingest read, and the outcome by day."""

    model_config = ConfigDict(extra="forbid")

    total: IngestCounts = Field(default_factory=IngestCounts)
    days: dict[date, IngestCounts] = Field(default_factory=dict)
    failed_objects: list[str] = Field(default_factory=list)
    failures: dict[str, Reason] = Field(default_factory=dict)
    """Objects that could not be opened or read to their end, by reason; the next run tries them again."""
    set_aside: dict[str, Reason] = Field(default_factory=dict)
    """Objects that are in quarantine as a whole, by reason."""
    moved_objects: int = 0
    ties: dict[date, dict[str, int]] = Field(default_factory=dict)
    """Numbers of feedback records, by day and by the kind of id that ties them, or the reason why none does."""
    tied_anew: list[date] = Field(default_factory=list)
    repeated_ids: dict[str, int] = Field(default_factory=dict)
    """Numbers of records that were dropped because another record with their id has other contents, by source."""
    loose_ids: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """Numbers of ids that many records of other contents have, and of these records, by source."""
    named: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Numbers of rows of the workload, by source and by the workload that their records name."""
    mixed: list[MixedWorkloads] = Field(default_factory=list)
    unread_keys: dict[str, list[UnreadKey]] = Field(default_factory=dict)
    """Keys of the records that nothing reads, by source."""
    fields: dict[str, dict[str, str]] = Field(default_factory=dict)
    """The `fields` that sources have, by source."""
    without_user: dict[str, int] = Field(default_factory=dict)
    """Numbers of rows of objects without any user, of sources whose `fields` names one."""
    clashes: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Numbers of records in which two names of one column contradict each other, by source and by what was read."""

    def add(self, batch: StagedBatch) -> None:
        """Adds a batch whose rows were decided on. Raises IngestCountsError where outcomes and records differ in number."""
        self._count(batch)
        for source, ids, records in run(batch.connection, "reading/commit/loose_records").fetchall():
            before = self.loose_ids.get(source, (0, 0))
            self.loose_ids[source] = (before[0] + ids, before[1] + records)
        for source, records in run(batch.connection, "reading/batch/repeated_ids").fetchall():
            self.repeated_ids[source] = self.repeated_ids.get(source, 0) + records
        for source, records in run(batch.connection, "reading/batch/rows_without_user").fetchall():
            if "user" in self.fields.get(source, {}):
                self.without_user[source] = self.without_user.get(source, 0) + records
        names = run(batch.connection, "reading/batch/workload_names", workload=batch.workload).fetchall()
        for source, name, count in names:
            of_source = self.named.setdefault(source, {})
            of_source[name] = of_source.get(name, 0) + count
        for source, clashes in batch.clashes.items():
            self.clashes[source] = dict(Counter(self.clashes.get(source, {})) + clashes)
        unread: dict[str, list[UnreadKey]] = {}
        for entry in batch.read:
            if entry.unread_keys:
                unread.setdefault(entry.source, []).extend(map(UnreadKey.of, json.loads(entry.unread_keys)))
        for source, keys in unread.items():
            self.unread_keys[source] = sum_keys([*self.unread_keys.get(source, []), *keys])[:MOST_UNREAD]
        self.failed_objects += [entry.uri for entry in batch.failed]
        for entry in batch.failed:
            _add_reason(self.failures, entry.problem, Reason(objects=1, first_uri=entry.uri, message=entry.problem))
        for reason, objects, first_uri, message in run(batch.connection, "reading/batch/quarantined_objects").fetchall():
            _add_reason(self.set_aside, reason, Reason(objects=objects, first_uri=first_uri, message=message))

    def _count(self, batch: StagedBatch) -> None:
        total = IngestCounts()
        for day, *numbers in run(batch.connection, "reading/batch/counts").fetchall():
            of_day = IngestCounts(**dict(zip(IngestCounts.model_fields, numbers, strict=True)))
            self.days.setdefault(day, IngestCounts()).add(of_day)
            total.add(of_day)
        if total.read != batch.records:
            raise IngestCountsError(
                f"{batch.records} records were read, but {total.rows} kept, "
                f"{total.repeated + total.erased + total.skipped} dropped, {total.quarantined} quarantined and "
                f"{total.feedback} of feedback make {total.read}; this batch was not committed"
            )
        self.total.add(total)


def _add_reason(reasons: dict[str, Reason], name: str, reason: Reason) -> None:
    if name in reasons:
        reason = reasons[name].model_copy(update={"objects": reasons[name].objects + reason.objects})
    reasons[name] = reason


def observe(tables: Tables, workload: str, sources: dict[str, SourceSettings]) -> Observation:
    """Lists the sources and records new and changed objects in the ledger. Objects whose key names no day are scanned for their
    records' days. Raises SourceError for a source without objects."""
    with ingest_lock(tables.lake), Ledger.open(tables, workload) as ledger:
        new, moved = _update(ledger, sources, look_for_days=True)
        unread, digest = ledger.unread()
        return Observation(
            new_objects=new,
            moved_objects=moved,
            unread_objects=unread,
            days=ledger.days(),
            unread_days=ledger.unread_days(),
            digest=digest,
        )


def ingest(
    tables: Tables, workload: str, sources: dict[str, SourceSettings], days: Sequence[date] | None = None
) -> IngestReport:
    """Reads the objects that are unread in the ledger; with `days`, only objects of these days. Rows go to their own day,
    whatever day their object's key names. Raises SourceError for a source without objects, LakeError for another key,
    IngestCountsError where the counts do not add up. A line or an object that cannot be read raises nothing."""
    with ingest_lock(tables.lake), Ledger.open(tables, workload) as ledger, open_staging(workload, sources) as stage:
        keep_key(tables)
        ingest_run = _IngestRun(tables, ledger, stage)
        report = ingest_run.report
        _, report.moved_objects = _update(ledger, sources, look_for_days=days is not None)
        for wanted in ledger.portions(sources, days):
            ingest_run.read(wanted)
        ingest_run.read(ingest_run.spans.objects_to_join(ledger, sources))
        ingest_run.read(ledger.named(ingest_run.read_with_loose_ids, sources))
        report.mixed = [
            mixed
            for name, source in sources.items()
            if (mixed := mixed_workloads(name, source, report.named.get(name, {}), workload))
        ]
        ties = ties_of(tables, workload, workloads_of(workload, sources))
        report.ties, report.tied_anew = ties.days.get(workload, {}), ties.changed.get(workload, [])
        if report.total.objects:
            for name in ORDER:
                tables.compact(name, workload)
    return report


class _IngestRun:
    """Reads objects batch by batch, each in four steps: stage, decide, commit, enter into the ledger."""

    def __init__(self, tables: Tables, ledger: Ledger, stage: Staging):
        self._tables, self._ledger, self._stage, self._sources = tables, ledger, stage, stage.sources
        self.report = IngestReport(
            fields={name: source.fields.given for name, source in self._sources.items() if source.fields}
        )
        self.spans = ReadApart()
        self.read_with_loose_ids: set[str] = set()
        """Uris of objects that were read while an id still seemed to identify their records."""

    def read(self, wanted: list[LedgerEntry]) -> None:
        if not wanted:
            return
        entries = self._with_dependents(wanted)
        workloads = self._workloads_of(entries)
        find_earlier_rows(self._tables, self._stage.connection, entries, workloads)
        for batch in self._stage.batches(entries):
            self._decide(batch, workloads)
            self.report.add(batch)
            commit(self._tables, batch)
            self._ledger.put([*batch.read, *batch.failed])
            self._ledger.save()

    def _decide(self, batch: StagedBatch, workloads: set[str]) -> None:
        decide(self._tables, batch, workloads)
        uris = run(batch.connection, "reading/commit/read_with_loose_ids").fetchall()
        self.read_with_loose_ids.update(uri for (uri,) in uris)
        self.spans.add(batch.connection, batch.read)

    def _with_dependents(self, wanted: list[LedgerEntry]) -> list[LedgerEntry]:
        """The objects, and those whose rows depend on them. If this run is killed, the next one reads the latter too."""
        entries = list(wanted)
        while more := [
            *self._with_removed_copies(entries),
            *self._ledger.partners_of(entries, self._sources),
            *partners_to_reread(self._ledger.of_formats(PAIRED, self._sources), entries),
        ]:
            entries = list({(entry.source, entry.uri): entry for entry in [*entries, *more]}.values())
        if again := [entry for place, entry in enumerate(entries) if place >= len(wanted) or entry.state == "read"]:
            self._ledger.put(replace(entry, state="found") for entry in again)
            self._ledger.save()
        return entries

    def _with_removed_copies(self, entries: list[LedgerEntry]) -> list[LedgerEntry]:
        """Further objects, with a record that was dropped as a copy of a record in these, which may no longer have it."""
        known = {entry.uri for entry in entries}
        waiting, dependents = set(known), set[str]()
        with workbench() as connection:
            attach(connection, self._tables, "decisions", self._workloads_of(entries))
            while waiting:
                connection.register("wanted_uris", pa.table({"uri": pa.array(sorted(waiting), pa.string())}))
                copies = run(connection, "reading/erasures/objects_with_removed_copies").fetchall()
                waiting = {uri for (uri,) in copies} - known - dependents
                dependents |= waiting
        return self._ledger.named(dependents, self._sources) if dependents else []

    def _workloads_of(self, entries: list[LedgerEntry]) -> set[str]:
        return workloads_of(self._stage.workload, self._sources).union(*(entry.mapped_to for entry in entries))


def _update(ledger: Ledger, sources: dict[str, SourceSettings], look_for_days: bool) -> tuple[int, int]:
    """Brings the ledger up to date with the sources and saves it. Returns the counts of new or changed and of moved objects."""
    new, moved = ledger.update(sources)
    has_new_days = False
    for dayless in ledger.portions(sources, dayless=True) if look_for_days else ():
        _find_days(ledger, sources, dayless)
        has_new_days = True
    if new or moved or has_new_days or ledger.touched:
        ledger.save()
    return new, moved


def _find_days(ledger: Ledger, sources: dict[str, SourceSettings], dayless: list[LedgerEntry]) -> None:
    """Reads objects for the days of their records; an object without any has the day on which it was written."""
    entries = {entry.uri: entry for entry in dayless}
    with open_staging(ledger.workload, sources) as stage:
        for batch in stage.batches(dayless):
            days = {uri: own for uri, _, own in run(batch.connection, "reading/batch/object_days").fetchall()}
            ledger.put(replace(entries[uri], days=tuple(own or (entries[uri].fallback_day,))) for uri, own in days.items())
            ledger.put(replace(entry, days=(entry.fallback_day,)) for entry in batch.failed)


@contextmanager
def ingest_lock(lake: LakeLayout) -> Iterator[None]:
    """Holds the lake's ingest lock; of a lake in a bucket, on all machines."""

    def waiting(holder: str) -> None:
        message = f"waiting: {holder} is ingesting into {lake.place}"
        logging.getLogger(__name__).warning(message)
        relay({"event": "note", "message": message})

    with (lake.root / ".ingesting").open("a+") as file:
        if not try_lock(file):
            file.seek(0)
            waiting(file.read().strip() or "another process")
            lock(file)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        with lake.mirror.ingesting(waiting):
            yield


MOST_REASONS = 8


def notes_on(report: IngestReport) -> Iterator[str]:
    """The notes on one ingest; none if there is nothing to report."""
    if report.moved_objects:
        yield moved_note(report.moved_objects)
    if report.failures:
        yield (
            f"{counted(len(report.failed_objects), 'object')} could not be read, and the next run tries again:"
            f"{_listed(list(report.failures.values()))}"
        )
    if report.set_aside:
        count = sum(reason.objects for reason in report.set_aside.values())
        yield f"{counted(count, 'object')} went to quarantine as a whole:{_listed(list(report.set_aside.values()))}"
    if lines := report.total.quarantined - sum(reason.objects for reason in report.set_aside.values()):
        yield (
            f"{counted(lines, 'record')} went to quarantine "
            '(`millrace sql "select source_uri, source_row, message from quarantine"` says why)'
        )
    for source, (ids, records) in sorted(report.loose_ids.items()):
        yield (
            f"{source}: {counted(ids, 'id')} came back with other contents in {counted(records, 'record')}, so content and "
            "time tell these records apart"
        )
    for source, records in sorted(report.repeated_ids.items()):
        yield (
            f"{source}: {counted(records, 'record')} left out as repeated_id: an earlier record with the same id has other "
            "contents (`millrace sql \"from decisions where rule = 'repeated_id'\"`)"
        )
    yield from map(str, report.mixed)
    for source, said in sorted(report.clashes.items()):
        for words, records in sorted(said.items()):
            yield f"{source}: {counted(records, 'record')} with two values of {words} (`fields` can name another path)"
    for source, keys in sorted(report.unread_keys.items()):
        yield f"{source}: {unread_text(keys, report.fields.get(source))}"
    for source, records in sorted(report.without_user.items()):
        yield (
            f"{source}: fields names the user at {report.fields[source]['user']}, and none of {counted(records, 'row')} has "
            "one: `millrace forget --user` cannot find them"
        )
    records = sum(sum(day.values()) for day in report.ties.values())
    if report.total.feedback and not any(tie in TIES or tie == "several" for day in report.ties.values() for tie in day):
        yield (
            f"none of the {records:,} feedback records names an interaction that was read: compare the ids of both with "
            '`millrace sql "select request_id, trace_id, session_id, tie from feedback limit 5"`'
        )


def moved_note(count: int) -> str:
    return f"{counted(count, 'object')} moved since the last run: the tables have the new uri, and nothing is read again"


def _listed(reasons: list[Reason]) -> str:
    left = len(reasons) - MOST_REASONS
    more = (
        [
            f"and {left:,} more reasons (`millrace sql \"select uri, problem from objects where state = 'failed'\"`, "
            '`millrace sql "from quarantine where source_row = 0"`)'
        ]
        if left > 0
        else []
    )
    return "\n  ".join(["", *map(str, reasons[:MOST_REASONS]), *more]) if len(reasons) > 1 else f" {reasons[0]}"
