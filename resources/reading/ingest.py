"""Ingests logs in place into the tables interactions, feedback, quarantine, decisions and objects.

    observe(tables, "math-tutor", sources)                           # new objects, and the days that have records
    ingest(tables, "math-tutor", sources)                            # reads what was not read yet
    ingest(tables, "math-tutor", sources, days=[date(2026, 6, 1)])   # only objects of these days

A changed object's rows are replaced as a whole; the ledger is written last. So a run that is killed anywhere and started
again gives the same tables, and ingesting twice equals ingesting once. Of rows with the same id one is kept, independent of
the order of reading. Every run checks read = kept + dropped + quarantined.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from resources.reading.commit import ORDER, attach, attach_tables, commit, workloads_of
from resources.reading.erasures import bury_ids, decide
from resources.reading.formats import FORMATS
from resources.reading.ingest_lock import ingesting
from resources.reading.ledger import Entry, Ledger
from resources.reading.mixed_workloads import MixedWorkloads, mixed_workloads
from resources.reading.moved import rename_rows
from resources.reading.pairing import partners_to_reread
from resources.reading.remembered_ties import ties_of
from resources.reading.sources import SourceSettings, nothing_under, objects_after
from resources.reading.span_events import ReadApart
from resources.reading.staging import Batch, Staging, staging
from resources.reading.unread_keys import MOST_UNREAD, UnreadKey, summed
from resources.sql_files import run, workbench
from resources.tables import Tables

PAIRED = [name for name, form in FORMATS.items() if form.paired]
"""Formats whose requests and responses lie in different objects."""


class CountsError(AssertionError):
    """Records were lost or counted twice between reading and committing: a defect of millrace."""


class Observation(BaseModel):
    """What a listing found. `digest` names the objects that wait to be read: a sensor's run key. `days` are those of all
    objects, `unread_days` those of the objects that wait to be read."""

    model_config = ConfigDict(extra="forbid")

    new_objects: int
    moved_objects: int = 0
    unread_objects: int
    days: list[date]
    unread_days: list[date] = Field(default_factory=list)
    digest: str


class Counts(BaseModel):
    """Numbers of records, of one day or in total.

    Dropped are repeated, erased and skipped records (skipped: not interactions, such as an HTTP span). attached_feedback:
    feedback inside an interaction's record, such as the reward of a trajectory.
    """

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

    total: Counts = Field(default_factory=Counts)
    days: dict[date, Counts] = Field(default_factory=dict)
    failed_objects: list[str] = Field(default_factory=list)
    failures: dict[str, Reason] = Field(default_factory=dict)
    """Objects that could not be opened or read to their end, by reason; the next run tries them again."""
    set_aside: dict[str, Reason] = Field(default_factory=dict)
    """Objects that are in quarantine as a whole, by reason."""
    moved_objects: int = 0
    ties: dict[date, dict[str, int]] = Field(default_factory=dict)
    """Numbers of feedback records, by day and by the kind of id that ties them to an interaction, or the reason why none
    does."""
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
    clashes: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Numbers of records in which two names of one column contradict each other, by source and by what was read."""

    @property
    def first_failure(self) -> str:
        return next((f"{reason.first_uri}: {reason.message}" for reason in self.failures.values()), "")


def observe(tables: Tables, workload: str, sources: dict[str, SourceSettings]) -> Observation:
    """Lists the sources and records new and changed objects in the ledger.

    Objects whose key names no day are scanned for their records' days. Raises SourceError for a source without objects.
    """
    with ingesting(tables.lake), Ledger.open(tables, workload) as ledger:
        new, moved = _notice(ledger, tables, sources, look_for_days=True)
        unread, digest = ledger.unread()
        return Observation(new_objects=new, moved_objects=moved, unread_objects=unread, days=ledger.days(),
                           unread_days=ledger.unread_days(), digest=digest)


def ingest(
    tables: Tables, workload: str, sources: dict[str, SourceSettings], days: Sequence[date] | None = None
) -> IngestReport:
    """Reads the objects that are unread in the ledger; with `days`, only objects of these days.

    Rows go to their own day, whatever day their object's key names. Raises SourceError for a source without objects and
    CountsError where the counts do not add up. A line or an object that cannot be read raises nothing.
    """
    report = IngestReport(fields={name: source.fields.given for name, source in sources.items() if source.fields})
    with ingesting(tables.lake), Ledger.open(tables, workload) as ledger, staging(workload, sources) as stage:
        _, report.moved_objects = _notice(ledger, tables, sources, look_for_days=days is not None)
        apart = ReadApart()
        loose: set[str] = set()
        for wanted in ledger.portions(sources, days):
            _read(ledger, tables, stage, wanted, report, apart, loose)
        if parts := apart.objects_to_join(ledger, sources):
            _read(ledger, tables, stage, parts, report, apart, loose)
        if loose and (earlier := ledger.named(loose, sources)):
            _read(ledger, tables, stage, earlier, report, apart, set())
        report.mixed = [mixed for name, source in sources.items()
                        if (mixed := mixed_workloads(name, source, report.named.get(name, {}), workload))]
        ties = ties_of(tables, workload, workloads_of(workload, sources))
        report.ties, report.tied_anew = ties.days.get(workload, {}), ties.changed.get(workload, [])
        if report.total.objects:
            for name in ORDER:
                tables.compact(name, workload)
    return report


def _read(
    ledger: Ledger, tables: Tables, stage: Staging, wanted: list[Entry], report: IngestReport, apart: ReadApart,
    loose: set[str],
) -> None:
    """Reads objects, and those that have to be read with them, batch by batch.

    loose: takes the uris of objects that were read while an id still seemed to identify their records.
    """
    workload, sources = stage.workload, stage.sources
    asked = list(wanted)
    while more := [*_with_removed_copies(tables, ledger, wanted, sources), *ledger.partners_of(wanted, sources),
                   *partners_to_reread(ledger.of_formats(PAIRED, sources), wanted)]:
        wanted = list({(entry.source, entry.uri): entry for entry in [*wanted, *more]}.values())
    if again := [entry for place, entry in enumerate(wanted) if place >= len(asked) or entry.state == "read"]:
        ledger.put(replace(entry, state="found") for entry in again)  # if this run is killed, the next one reads them
        ledger.save(tables)
    workloads = workloads_of(workload, sources).union(*(entry.mapped_to for entry in wanted))
    attach_tables(tables, stage, workloads)
    stage.connection.register("waiting", pa.table({"uri": pa.array([entry.uri for entry in wanted], pa.string())}))
    run(stage.connection, "reading/commit/read_before")
    for batch in stage.batches(wanted):
        attach_tables(tables, stage, workloads)
        number = apart.begin_batch(stage.connection, batch.formats.values())
        for query in ("reread", "loose_ids"):
            run(stage.connection, f"reading/commit/{query}")
        for source, ids, records in run(stage.connection, "reading/commit/loose_records").fetchall():
            before = report.loose_ids.get(source, (0, 0))
            report.loose_ids[source] = (before[0] + ids, before[1] + records)
        loose.update(uri for (uri,) in run(stage.connection, "reading/commit/read_with_loose_ids").fetchall())
        for query in ("tell_feedback_apart", "tell_apart", "known_ids", "emptied_before"):
            run(stage.connection, f"reading/commit/{query}")
        decide(stage, tables, workloads)
        for source, records in run(stage.connection, "reading/batch/repeated_ids").fetchall():
            report.repeated_ids[source] = report.repeated_ids.get(source, 0) + records
        _count(stage, batch, report)
        bury_ids(stage, tables)
        commit(tables, stage)
        for source, name, count in run(stage.connection, "reading/batch/workload_names", workload=workload).fetchall():
            names = report.named.setdefault(source, {})
            names[name] = names.get(name, 0) + count
        found = {uri: counted for uri, *counted in run(stage.connection, "reading/batch/object_days").fetchall()}
        aside = run(stage.connection, "reading/batch/quarantined_objects").fetchall()
        unread = _unread_keys(stage, batch, report)
        done = []
        for entry in batch.read:
            records, own_days = found[entry.uri]
            all_days = tuple(sorted({*own_days, *(entry.days or (entry.fallback_day,))}))
            form = batch.formats.get(entry.uri, "")
            done.append(replace(entry, state="read", rows=records, days=all_days, format=form, problem="",
                                read_as=sources[entry.source].read_as, partners=batch.partners.get(entry.uri, ()),
                                content_sha256=batch.digests.get(entry.uri, ""), unread_keys=unread.get(entry.uri, "")))
            apart.add(done[-1], number)
        ledger.put([*done, *batch.failed])
        report.failed_objects += [entry.uri for entry in batch.failed]
        for entry in batch.failed:
            _add_reason(report.failures, entry.problem, Reason(objects=1, first_uri=entry.uri, message=entry.problem))
        for reason, objects, first_uri, message in aside:
            _add_reason(report.set_aside, reason, Reason(objects=objects, first_uri=first_uri, message=message))
        ledger.save(tables)


def _unread_keys(stage: Staging, batch: Batch, report: IngestReport) -> dict[str, str]:
    """Adds unread keys and contradictions to the report; returns the keys by uri, as the ledger has them."""
    sources, found = {entry.uri: entry.source for entry in batch.read}, {}
    for uri, kind, path, other, records in run(stage.connection, "reading/batch/object_unread_keys").fetchall():
        source = sources[uri]
        if kind == "unread":
            found.setdefault(uri, []).append([path, other, int(records)])
            continue
        column, winner = path.split("\t")
        said = f"{column}: {winner} is read, not {other}"
        clashes = report.clashes.setdefault(source, {})
        clashes[said] = clashes.get(said, 0) + int(records)
    by_source: dict[str, list[UnreadKey]] = {}
    for uri, keys in found.items():
        by_source.setdefault(sources[uri], []).extend(map(UnreadKey.of, keys))
    for source, keys in by_source.items():
        report.unread_keys[source] = summed([*report.unread_keys.get(source, []), *keys])[:MOST_UNREAD]
    return {uri: json.dumps(keys) for uri, keys in found.items()}


def _add_reason(known: dict[str, Reason], name: str, reason: Reason) -> None:
    if name in known:
        reason = known[name].model_copy(update={"objects": known[name].objects + reason.objects})
    known[name] = reason


def _notice(ledger: Ledger, tables: Tables, sources: dict[str, SourceSettings], look_for_days: bool) -> tuple[int, int]:
    """Brings the ledger up to date with the sources and commits it. Returns the counts of new or changed and of moved objects.

    Rows of moved objects are renamed before the ledger is written: after a crash between the two they are renamed again.
    """
    new = moved = 0
    for name, source in sources.items():
        listed, changed = ledger.notice(name, objects_after(name, source), source.read_as)
        if not listed:
            raise nothing_under(name, source)
        new += changed
    for name, source in sources.items():
        pairs, mapped_to = ledger.follow_moved(name, source.read_as)
        if len(pairs):
            moved += len(pairs)
            rename_rows(tables, pairs, workloads_of(ledger.workload, sources) | mapped_to)
    looked = False
    for dayless in ledger.portions(sources, dayless=True) if look_for_days else ():
        looked = True
        with staging(ledger.workload, sources) as stage:
            for batch in stage.batches(dayless):
                found = {uri: days for uri, _, days in run(stage.connection, "reading/batch/object_days").fetchall()}
                ledger.put(replace(entry, days=tuple(found[entry.uri] or (entry.fallback_day,))) for entry in batch.read)
                ledger.put(replace(entry, days=(entry.fallback_day,)) for entry in batch.failed)
    if new or looked or ledger.touched:
        ledger.save(tables)
    return new - moved, moved


def _with_removed_copies(
    tables: Tables, ledger: Ledger, wanted: list[Entry], sources: dict[str, SourceSettings]
) -> list[Entry]:
    """Objects with a record that was dropped as a copy of a record in `wanted`: `wanted` may no longer have that record."""
    waiting = {entry.uri for entry in wanted}
    chosen, found = set(waiting), set()
    with workbench() as connection:
        workloads = workloads_of(ledger.workload, sources).union(*(entry.mapped_to for entry in wanted))
        attach(connection, tables, "decisions", workloads)
        while waiting:
            connection.register("wanted_uris", pa.table({"uri": pa.array(sorted(waiting), pa.string())}))
            waiting = {uri for (uri,) in run(connection, "reading/erasures/objects_with_removed_copies").fetchall()} - chosen
            chosen |= waiting
            found |= waiting
    return ledger.named(found, sources) if found else []


def _count(stage: Staging, batch: Batch, report: IngestReport) -> None:
    """Adds the batch to the report. The reader's count of records must equal the sum of the outcomes."""
    counted = Counts()
    outcomes = run(stage.connection, "reading/batch/counts").fetchall()
    for day, objects, kept, repeated, erased, skipped, quarantined, feedback, attached in outcomes:
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
