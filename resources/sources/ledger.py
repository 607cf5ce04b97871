"""The ledger: which log objects exist, and which were read: the table `objects`, read into DuckDB. An object is `found` until
an ingest has committed all its rows, then `read`; one that could not be read is `failed` and is tried again. An object has
moved if its source no longer lists its uri, and lists a new one with its size and content: its rows, days and decisions stay. A
copy that is listed together with its original is read, and its records are `repeated_record`."""

from __future__ import annotations

import hashlib
import io
import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, dataclass, fields
from datetime import UTC, date, datetime
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, Literal, TypeVar

import duckdb
import pyarrow as pa

from resources.lake import SCHEMAS, Tables, attach_slice, rows, run, sql_text, stream, workbench
from resources.sources.listing import LogObject, SourceError
from resources.sources.sources import (
    ObjectVersion,
    SourceSettings,
    days_in,
    nothing_under,
    objects_after,
    open_object,
    workloads_of,
)
from stores import s3

AT_ONCE = s3.CONNECTIONS
AHEAD_BYTES = 64 << 20
SMALL_BYTES = s3.RANGE_BYTES
SILENT = 8
"""After this many unanswered requests in a row, the other objects are left for the next run."""

Item = TypeVar("Item", bound=ObjectVersion)
Opened = Callable[[], AbstractContextManager[BinaryIO]]


def prefetch(items: Iterable[Item]) -> Iterator[tuple[Item, Opened]]:
    """Every item with a function that opens its content, in order."""
    source = iter(items)
    waiting: deque[tuple[Item, Future[bytes] | None]] = deque()
    ahead = silent = 0
    while True:
        while len(waiting) < AT_ONCE and ahead < AHEAD_BYTES and (item := next(source, None)) is not None:
            small = item.uri.startswith(s3.SCHEMES) and item.bytes <= SMALL_BYTES and silent < SILENT
            waiting.append((item, s3.start_fetch(item.uri, item.etag) if small else None))
            ahead += item.bytes if small else 0
        if not waiting:
            return
        item, content = waiting.popleft()
        if content is None:
            unanswered = silent >= SILENT and item.uri.startswith(s3.SCHEMES)
            yield item, partial(_not_asked, item.uri) if unanswered else partial(open_object, item)
            continue
        ahead -= item.bytes
        error = UNASKED if content.cancelled() else content.exception()
        silent = silent + 1 if isinstance(error, s3.UnreachableError) else 0
        if silent == SILENT:
            for _, others in waiting:
                if others is not None:
                    others.cancel()
        yield item, partial(_whole, content, item.uri)


UNASKED = s3.UnreachableError("the endpoint did not answer for other objects")


def _whole(content: Future[bytes], uri: str) -> BinaryIO:
    if content.cancelled():
        _not_asked(uri)
    return io.BytesIO(content.result())


def _not_asked(uri: str) -> BinaryIO:
    raise s3.UnreachableError(f"{uri}: left for the next run, since {UNASKED}")


MOST_LEFT = 64 << 20
"""Most bytes to read for the digest after a reader has stopped before the end."""
READ_BYTES = 4 << 20


class DigestReader:
    """A file that is read once from beginning to end."""

    def __init__(self, file: Any):
        self._file, self._digest, self._ended = file, hashlib.sha256(), False

    def read(self, size: int) -> bytes:
        content = self._file.read(size)
        self._digest.update(content)
        self._ended = not content and size > 0
        return content

    def digest(self) -> str:
        """sha256 of the whole content; "" if more than MOST_LEFT bytes were left unread."""
        left = MOST_LEFT
        while not self._ended and left > 0:
            left -= len(self.read(READ_BYTES))
        return self._digest.hexdigest() if self._ended else ""


LISTED_TOGETHER = 10_000
READ_TOGETHER = 100_000
"""Most entries in Python's memory at a time, while listing and while reading."""

_COLUMNS = pa.schema([field for field in SCHEMAS["objects"] if field.name != "workload"])
_LISTED = pa.schema([_COLUMNS.field(name) for name in ("source", "uri", "bytes", "etag", "modified")])


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One object's row in the ledger."""

    source: str
    uri: str
    etag: str
    bytes: int
    modified: datetime
    rows: int | None = None
    days: tuple[date, ...] = ()
    state: Literal["found", "read", "failed"] = "found"
    format: str = ""
    problem: str = ""
    read_as: str = ""
    partners: tuple[str, ...] = ()
    content_sha256: str = ""
    unread_keys: str = ""
    """JSON of [path, field that would read it, records] for the keys of its records that nothing reads."""

    @property
    def mapped_to(self) -> set[str]:
        return set(json.loads(self.read_as)["workloads"].values()) if self.read_as else set()

    @property
    def fallback_day(self) -> date:
        """The day of records without a time: the day in the key, else the object's own."""
        return next(iter(days_in(self.uri)), self.modified.astimezone(UTC).date())


_NAMES = [field.name for field in fields(LedgerEntry)]


def listed_table(listed: Sequence[LogObject]) -> pa.Table:
    columns = [[getattr(item, name) for item in listed] for name in _LISTED.names]
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, _LISTED, strict=True)], schema=_LISTED)


class Ledger:
    """The entries of one workload."""

    def __init__(self, tables: Tables, workload: str, connection: duckdb.DuckDBPyConnection):
        self.workload, self._tables, self._connection = workload, tables, connection
        self.touched = 0
        """Objects that `notice` found with another time or etag, and with the content that was read."""

    @classmethod
    @contextmanager
    def open(cls, tables: Tables, workload: str) -> Iterator[Ledger]:
        with workbench() as connection:
            attach_slice(connection, tables, "objects", workload)
            run(connection, "reading/ledger/create")
            run(connection, "reading/ledger/listed_objects")
            run(connection, "reading/ledger/new_objects")
            yield cls(tables, workload, connection)

    def update(self, sources: Mapping[str, SourceSettings]) -> tuple[int, int]:
        """Brings the entries up to date with the sources. Returns the counts of new or changed and of moved objects. Rows of
        moved objects are renamed before the ledger is saved: after a crash between the two they are renamed again. Raises
        SourceError for a source without objects."""
        new = moved = 0
        for name, source in sources.items():
            listed, changed = self.notice(name, objects_after(name, source), source.read_as)
            if not listed:
                raise nothing_under(name, source)
            new += changed
        for name, source in sources.items():
            pairs, mapped_to = self.follow_moved(name, source.read_as)
            if len(pairs):
                moved += len(pairs)
                rename_rows(self._tables, pairs, workloads_of(self.workload, sources) | mapped_to)
        return new - moved, moved

    def notice(self, source: str, listed: Iterable[LogObject], read_as: str = "") -> tuple[int, int]:
        """Compares a source's whole listing with the ledger. Returns the number of objects, and of those that are new, changed,
        or were read with other settings than `read_as`. An object with another time or etag and the content that was read is
        not read again: retention may have emptied its rows. Raises SourceError for an object that another source lists too."""
        items, total, new = iter(listed), 0, 0
        run(self._connection, "reading/ledger/delete_listed", sources=[source])
        run(self._connection, "reading/ledger/delete_new", sources=[source])
        while page := list(islice(items, LISTED_TOGETHER)):
            total += len(page)
            self._connection.register("listed", listed_table(page))
            for uri, other in run(self._connection, "reading/ledger/in_two_sources").fetchall():
                raise SourceError(
                    f"sources {other} and {source} both hold {uri}: give each a uri of its own, since an object "
                    "that is read twice would leave its rows twice"
                )
            run(self._connection, "reading/ledger/add_new")
            self._keep_touched(read_as)
            changed = run(self._connection, "reading/ledger/new_or_changed", read_as=read_as).fetchall()
            self.put(
                [
                    LedgerEntry(
                        source,
                        uri,
                        etag,
                        size,
                        modified,
                        days=tuple(days_in(uri)),
                        format=was,
                        read_as=then,
                        partners=tuple(partners),
                    )
                    for source, uri, size, etag, modified, was, then, partners in changed
                ]
            )
            run(self._connection, "reading/ledger/add_listed")
            self._connection.unregister("listed")
            new += len(changed)
        vanished = run(self._connection, "reading/ledger/drop_vanished", sources=[source]).fetchall() if total else []
        return total, new + len(vanished)

    def _keep_touched(self, read_as: str) -> None:
        """Gives listed objects of unchanged content the etag of now."""
        touched = rows(self._connection, "reading/ledger/touched", read_as=read_as).to_pylist()
        known = {row["uri"]: row.pop("content_sha256") for row in touched}
        uris = [each["uri"] for each in digests(touched) if each["content_sha256"] == known[each["uri"]]]
        if uris:
            run(self._connection, "reading/ledger/keep_touched", uris=uris)
        self.touched += len(uris)

    def follow_moved(self, source: str, read_as: str = "") -> tuple[pa.Table, set[str]]:
        """Moves the entries of moved objects to their new uri. Call it after `notice`. Returns the pairs (old_uri, uri), and
        the workloads that may have rows of these objects."""
        moved = find_moved(self._connection, source)
        if not len(moved):
            return moved, set()
        read = run(self._connection, "reading/ledger/mapped_to").fetchall()
        run(self._connection, "reading/ledger/relocated", read_as=read_as)
        for query in ("delete_moved", "add_relocated", "rename_partners"):
            run(self._connection, f"reading/ledger/{query}")
        return moved, {name for (text,) in read if text for name in json.loads(text)["workloads"].values()}

    def put(self, entries: Iterable[LedgerEntry]) -> None:
        """Writes entries; each replaces the previous entry of its object."""
        values = [astuple(entry) for entry in entries]
        columns = {name: [row[place] for row in values] for place, name in enumerate(_NAMES)}
        self._connection.register(
            "arriving", pa.table([pa.array(columns[field.name], field.type) for field in _COLUMNS], schema=_COLUMNS)
        )
        run(self._connection, "reading/ledger/delete_replaced")
        run(self._connection, "reading/ledger/add")
        self._connection.unregister("arriving")

    def portions(
        self, sources: Collection[str], days: Sequence[date] | None = None, dayless: bool = False
    ) -> Iterator[list[LedgerEntry]]:
        """Entries that wait to be read, by day and uri. days: only objects of these days; dayless: only objects without a day.
        Each entry is returned once, whatever its outcome; entries that were read since the first portion are left out."""
        run(
            self._connection,
            "reading/ledger/waiting",
            sources=list(sources),
            days=None if days is None else list(days),
            dayless=dayless,
        )
        [[waiting]] = run(self._connection, "reading/ledger/count_waiting").fetchall()
        for after in range(0, waiting, READ_TOGETHER):
            if portion := self._entries("reading/ledger/portion", after=after, count=READ_TOGETHER):
                yield portion

    def named(self, uris: Collection[str], sources: Collection[str]) -> list[LedgerEntry]:
        return self._entries("reading/ledger/entries", uris, sources=list(sources))

    def of_formats(self, formats: Collection[str], sources: Collection[str]) -> list[LedgerEntry]:
        return self._entries("reading/ledger/of_formats", formats=list(formats), sources=list(sources))

    def partners_of(self, wanted: Sequence[LedgerEntry], sources: Collection[str]) -> list[LedgerEntry]:
        """Further listed objects that hold parts of rows together with the wanted ones."""
        return self._entries("reading/ledger/partners_of", [entry.uri for entry in wanted], sources=list(sources))

    def whole(self, formats: Collection[str], uris: Collection[str], sources: Collection[str]) -> list[LedgerEntry]:
        """Listed objects of some formats, and some by uri, without those that have a partner that is gone."""
        return self._entries("reading/ledger/whole", uris, formats=list(formats), sources=list(sources))

    def entries(self) -> Iterator[LedgerEntry]:
        for batch in stream(self._connection, "reading/ledger/objects", workload=self.workload):
            for row in batch.drop_columns("workload").to_pylist():
                yield LedgerEntry(**{**row, "days": tuple(row["days"]), "partners": tuple(row["partners"])})

    def days(self) -> list[date]:
        return [day for (day,) in run(self._connection, "reading/ledger/days").fetchall()]

    def unread_days(self) -> list[date]:
        return [day for (day,) in run(self._connection, "reading/ledger/unread_days").fetchall()]

    def unread(self) -> tuple[int, str]:
        """Number of objects that wait to be read, and a digest of their uris and contents."""
        digest, count = hashlib.sha256(), 0
        for batch in stream(self._connection, "reading/ledger/unread"):
            count += len(batch)
            digest.update(
                "".join(
                    f"{source}\0{uri}\0{etag}\n"
                    for source, uri, etag in zip(*(batch[name].to_pylist() for name in ("source", "uri", "etag")), strict=True)
                ).encode()
            )
        return count, digest.hexdigest()

    def save(self) -> None:
        entries = stream(self._connection, "reading/ledger/objects", workload=self.workload)
        self._tables.replace("objects", entries, workload=self.workload)

    def _entries(self, query: str, uris: Collection[str] = (), **parameters) -> list[LedgerEntry]:
        self._connection.register("wanted_uris", pa.table({"uri": pa.array(sorted(uris), pa.string())}))
        result = run(self._connection, query, **parameters)
        names = [column[0] for column in result.description]
        known = [dict(zip(names, row, strict=True)) for row in result.fetchall()]
        return [LedgerEntry(**{**row, "days": tuple(row["days"]), "partners": tuple(row["partners"])}) for row in known]


SAME_PARTS = (8, 4, 2, 1, 0)
"""Trailing path parts that must agree, tried in turn: of several objects with one content, the most similar path wins."""

_DIGESTS = pa.schema([("uri", pa.string()), ("content_sha256", pa.string())])
_MOVED = pa.schema([("old_uri", pa.string()), ("uri", pa.string())])


def find_moved(connection: duckdb.DuckDBPyConnection, source: str) -> pa.Table:
    """Pairs (old_uri, uri) of a source's moved objects; also left in the connection as table `moved`."""
    run(connection, "reading/ledger/moved")
    run(connection, "reading/ledger/gone", source=source)
    if not connection.table("gone").shape[0]:
        return _MOVED.empty_table()
    run(connection, "reading/ledger/arrived", source=source)
    objects = rows(connection, "reading/ledger/to_digest").to_pylist()
    connection.register("digests", pa.Table.from_pylist(list(digests(objects)), schema=_DIGESTS))
    for by_content in (True, False):
        for depth in SAME_PARTS if by_content else SAME_PARTS[:-1]:
            run(connection, "reading/ledger/match_moved", by_content=by_content, depth=depth)
    connection.unregister("digests")
    return connection.table("moved").to_arrow_table()


def digests(objects: list[dict]) -> Iterator[dict[str, str]]:
    """sha256 of the objects' bytes. Unreadable objects are left out: the ingest reports them."""
    items = (LogObject(**{**item, "modified": item["modified"].astimezone(UTC)}) for item in objects)
    for item, opened in prefetch(items):
        try:
            with opened() as file:
                reader = DigestReader(file)
                while reader.read(READ_BYTES):
                    pass
                yield {"uri": item.uri, "content_sha256": reader.digest()}
        except OSError:
            continue


def rename_rows(tables: Tables, moved: pa.Table, workloads: Collection[str]) -> None:
    """Replaces the old uri with the new one in all rows of moved objects. Safe to repeat after a crash."""
    for workload in sorted(workloads):
        with workbench() as connection:
            connection.register("moved", moved)
            for table in ("decisions", "quarantine", "feedback", "interactions"):
                attach_slice(connection, tables, table, workload)
            run(connection, "reading/moved/ingest_decisions")
            if any(_names(connection, "ingest_decisions", f"detail ->> '$.{key}'") for key in ("uri", "kept_uri")):
                tables.replace("decisions", stream(connection, "reading/moved/decisions"), workload=workload, stage="ingest")
            if _names(connection, "quarantine", "source_uri"):
                tables.replace("quarantine", stream(connection, "reading/moved/quarantine"), workload=workload)
            for table in ("feedback", "interactions"):
                days = [day for (day,) in connection.execute(sql_text("reading/moved/days").format(table=table)).fetchall()]
                if days:
                    renamed = connection.sql(sql_text("reading/moved/rows").format(table=table), params={"days": days})
                    tables.replace(table, renamed.to_arrow_reader(10_000), workload=workload, dt=days)


def _names(connection: duckdb.DuckDBPyConnection, table: str, column: str) -> bool:
    return connection.execute(sql_text("reading/moved/are_named").format(table=table, column=column)).fetchall()[0][0]
