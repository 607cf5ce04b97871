"""Chooses the format that reads each record of an object: the recipe's, or the first that recognises the record; for a record
that the SQL cannot extract, `format_of_faulty` looks for another. It runs in a reading thread and touches no DuckDB."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from resources.records import (
    FORMATS,
    RAW_BYTES,
    FieldMapping,
    Format,
    RecordProblem,
    Records,
    by_fields,
    detect,
    read_object,
    record_of,
    streams,
    wrapped_fields,
)
from resources.sources import DigestReader, LedgerEntry, Opened, SourceSettings, prefetch

CHUNKS = FORMATS["chunks"]


@dataclass(frozen=True)
class ObjectPart:
    """Part of an object's content."""

    index: int
    format: Format | None
    """The format of Records."""
    content: Records | RecordProblem | OSError | None
    """In the last part of an object: None, or the OSError that ended the reading."""
    content_sha256: str = ""
    """Of the object's bytes, in its last part; "" if not all were read."""

    @property
    def ends_object(self) -> bool:
        return not isinstance(self.content, Records | RecordProblem)


def named_format(entry: LedgerEntry, sources: Mapping[str, SourceSettings]) -> Format | None:
    """The format that the recipe names for the object's source; None for `auto`, where each record is recognised."""
    return FORMATS.get(sources[entry.source].format)


def read_objects(entries: Sequence[LedgerEntry], sources: Mapping[str, SourceSettings]) -> Iterator[ObjectPart]:
    """The objects' records, in order, by format."""
    for index, (entry, opened) in enumerate(prefetch(entries)):
        try:
            digest = yield from _read(index, entry, opened, sources[entry.source])
            yield ObjectPart(index, None, None, digest)
        except OSError as error:  # the caller records the object as failed; the next run tries it again
            yield ObjectPart(index, None, error)


def _read(index: int, entry: LedgerEntry, opened: Opened, source: SourceSettings) -> Generator[ObjectPart, None, str]:
    named = FORMATS.get(source.format)
    router = ObjectRouter(named, source.fields)
    with opened() as raw:
        file = DigestReader(raw)
        for piece in read_object(file, entry.uri, named is not None and named.plain_text):
            for form, part in [(None, piece)] if isinstance(piece, RecordProblem) else router.add(piece):
                yield ObjectPart(index, form, part)
            if router.hopeless:
                return file.digest()
        for form, part in router.rest():
            yield ObjectPart(index, form, part)
        return file.digest()


class ObjectRouter:
    """Sorts the records of one object by format, part by part. named: the format that the recipe names; fields: the source's
    mapping of unknown records. `hopeless` is true once no format recognises any record of the first part."""

    def __init__(self, named: Format | None, fields: FieldMapping | None = None):
        self._named, self._fields = named, fields
        self._first: Format | None = None
        self._folds = named is None or (named.rows_as or named.name) == CHUNKS.rows_as
        self._fold: streams.StreamFold | None = None
        self._mixed = self.hopeless = False

    def add(self, part: Records) -> Iterator[tuple[Format | None, Records | RecordProblem]]:
        whole = None
        if self._folds and (part.chunks or self._fold):
            self._fold = self._fold or streams.StreamFold(self._fields.begins if self._fields else ())
            whole, part = self._fold.add(part)
        if len(part.rows):
            yield from self._others(part)
        if whole is not None and len(whole.rows):
            yield CHUNKS, whole

    def rest(self) -> Iterator[tuple[Format | None, Records | RecordProblem]]:
        """Streamed answers that were still open at the end of the object."""
        if self._fold:
            yield CHUNKS, self._fold.rest()

    def _others(self, part: Records) -> Iterator[tuple[Format | None, Records | RecordProblem]]:
        if self._first is self._named is self._fields is None:
            self._fields = next(filter(None, map(wrapped_fields, part.sample)), None)
        if self._fields:
            yield from self._by_fields(part, self._fields)
            return
        if self._first is None:
            self._first, sample = _first_of(part, self._named)
            if self._first is None and not self._fold:
                self.hopeless = True
                yield None, _none_known(part, self._named)
                return
            self._first = self._first or self._named or CHUNKS
            self._mixed = self._named is None and (self._first.streamed or not all(map(self._first.recognises, sample)))
        if self._mixed or (self._named is None and self._first.name == "feedback" and _has_corrections(part)):
            for own, records in by_format(part, self._first):
                if own is None:
                    for row, text in zip(records.rows.to_pylist(), records.raw.to_pylist(), strict=True):
                        yield None, unknown_record(row, text)
                else:
                    yield own, records
        else:
            yield self._first, part

    def _by_fields(self, part: Records, fields: FieldMapping) -> Iterator[tuple[Format | None, Records | RecordProblem]]:
        pieces = list(by_fields(part, fields))
        if self._first is None and not self._fold and not any(form for form, _ in pieces):
            self.hopeless = True
            first = next(each for _, each in pieces if isinstance(each, RecordProblem))
            message = f"none of the first {len(part.rows)} records can be read, the first because {first.message}"
            yield None, RecordProblem(0, "unknown_format", message, first.raw)
            return
        self._first = self._first or next((form for form, _ in pieces if form), CHUNKS)
        yield from pieces


def _has_corrections(part: Records) -> bool:
    """Whether a record far into an export of LangSmith's feedback may be an edit."""
    return bool(pc.any(pc.match_substring_regex(part.raw, r'"correction"\s*:\s*[^n\s]')).as_py())


def _first_of(part: Records, named: Format | None) -> tuple[Format | None, list[dict]]:
    """An object's first records with their format; if no format fits all, that of the first record that has one."""

    def format_of(records: list[dict]) -> Format | None:
        return detect(records) if named is None else named if any(map(named.accepts, records)) else None

    form = format_of(part.sample)
    if form is not None:
        return form, part.sample
    for text in part.raw:
        record = record_of(text.as_py())
        if record is not None and (form := format_of([record])) is not None:
            return form, [*part.sample, record]
    return None, part.sample


def _none_known(part: Records, named: Format | None) -> RecordProblem:
    keys = ", ".join(sorted(map(str, part.sample[0]))[:12]) if part.sample else "none"
    known = f"the format {named.name}" if named else "a known log format"
    message = f"none of the first {len(part.rows)} records is of {known}; the first one's keys: {keys[:200]}"
    return RecordProblem(0, "unknown_format", message, part.raw[0].as_py().encode()[:RAW_BYTES])


def recognised_format(record: dict, first: Format) -> Format | None:
    """The format that recognises a record: `first` if it does, else the first format that does, else None."""
    return next((form for form in (first, *FORMATS.values()) if form.recognises(record)), None)


def by_format(part: Records, first: Format) -> Iterator[tuple[Format | None, Records]]:
    """Groups the records of a part by format. A line that is not a JSON object stays with `first`, whose checks reject it."""
    owners: list[Format | None] = []
    for text in part.raw.to_pylist():
        record = record_of(text)
        owners.append(first if record is None else recognised_format(record, first))
    for own in dict.fromkeys(owners):
        held = pa.array(np.array([owner is own for owner in owners], dtype=bool))
        sample = part.sample if own is first else []
        yield own, Records(part.rows.filter(held), part.raw.filter(held), sample)


def unknown_record(row: int, text: str, named: Format | None = None) -> RecordProblem:
    """The quarantine entry of a record that no format recognises, or that is not of the format the recipe names."""
    record = record_of(text) or {}
    keys = ", ".join(sorted(map(str, record))[:12])[:200]
    known = f"not of the format {named.name}" if named else "of no known format"
    return RecordProblem(row, "unknown_format", f"the record is {known}; its keys: {keys}", text.encode()[:RAW_BYTES])


def format_of_faulty(text: str, form: Format, named: bool) -> Format | None:
    """The format of a record that `form` could not extract; `form` itself if no other format recognises it. Where the recipe
    names the format (`named`), no other format is tried: None if the record is not of it."""
    record = record_of(text)
    if named:
        return form if record is None or form.accepts(record) else None
    return form if record is None else recognised_format(record, form)
