"""Which formats the records of one object have: each goes to its own format's SQL, what no format knows to quarantine.

    kinds = Kinds(named=None)                   # or the format that the recipe names: all records are read as that
    for form, found in kinds.add(part): ...     # Records of a format, or a Problem
    for form, found in kinds.rest(): ...

A file whose first records are all of one format is read as that; of its records only those are asked that the format's
SQL could make nothing of (`stray`). So a uniform file costs nothing, and none of its odd lines becomes a half-empty row.
Where the first records are of no format, its first part is looked through. Lines of streamed answers are put together
wherever they stand.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from resources.reading.formats import FORMATS, Format, detect
from resources.reading.log_reader import RAW_BYTES, Problem, Records, record_of
from resources.reading.streams import StreamFold

CHUNKS = FORMATS["chunks"]


class Kinds:
    """The formats of one object, told part by part. `hopeless`: its first part holds no record, the rest need not be read."""

    def __init__(self, named: Format | None):
        self._named, self._first = named, None
        self._folds = named is None or (named.rows_as or named.name) == CHUNKS.rows_as
        self._fold: StreamFold | None = None
        self._mixed = self.hopeless = False

    def add(self, part: Records) -> Iterator[tuple[Format | None, Records | Problem]]:
        """The part's records by format."""
        whole = None
        if self._folds and (part.chunks or self._fold):
            self._fold = self._fold or StreamFold()
            whole, part = self._fold.add(part)
        if len(part.rows):
            yield from self._others(part)
        if whole is not None and len(whole.rows):
            yield CHUNKS, whole

    def rest(self) -> Iterator[tuple[Format | None, Records | Problem]]:
        """What waited for more until the end of the object."""
        if self._fold:
            yield CHUNKS, self._fold.rest()

    def _others(self, part: Records) -> Iterator[tuple[Format | None, Records | Problem]]:
        """Records that are no pieces of streams."""
        if self._first is None:
            self._first, sample = _first_of(part, self._named)
            if self._first is None and not self._fold:
                self.hopeless = True
                yield None, _none_known(part, self._named)
                return
            self._first = self._first or self._named or CHUNKS
            self._mixed = self._named is None and (
                self._first.streamed or not all(map(self._first.recognises, sample))
            )
        if self._mixed:
            for own, records in by_format(part, self._first):
                if own is None:
                    for row, text in zip(records.rows.to_pylist(), records.raw.to_pylist(), strict=True):
                        yield None, unknown(row, text)
                else:
                    yield own, records
        else:
            yield self._first, part


def _first_of(part: Records, named: Format | None) -> tuple[Format | None, list[dict]]:
    """The format of an object's first records, and these; where no format knows them, that of the first that is known."""
    def told(records: list[dict]) -> Format | None:
        return detect(records) if named is None else named if any(map(named.accepts, records)) else None

    form = told(part.sample)
    if form is not None:
        return form, part.sample
    for text in part.raw:
        record = record_of(text.as_py())
        if record is not None and (form := told([record])) is not None:
            return form, [*part.sample, record]
    return None, part.sample


def _none_known(part: Records, named: Format | None) -> Problem:
    keys = ", ".join(sorted(map(str, part.sample[0]))[:12]) if part.sample else "none"
    known = f"the format {named.name}" if named else "a known log format"
    message = f"none of the first {len(part.rows)} records is of {known}; the first one's keys: {keys[:200]}"
    return Problem(0, "unknown_format", message, part.raw[0].as_py().encode()[:RAW_BYTES])


def whose(record: dict, first: Format) -> Format | None:
    """The format of one record: `first` where it recognises it, else the first that does."""
    return next((form for form in (first, *FORMATS.values()) if form.recognises(record)), None)


def by_format(part: Records, first: Format) -> Iterator[tuple[Format | None, Records]]:
    """The records of a part, one group a format. What is no JSON object stays with `first`, whose checks will say so."""
    owners: list[Format | None] = []
    for text in part.raw.to_pylist():
        record = record_of(text)
        owners.append(first if record is None else whose(record, first))
    for own in dict.fromkeys(owners):
        held = pa.array(np.array([owner is own for owner in owners], dtype=bool))
        sample = part.sample if own is first else []
        yield own, Records(part.rows.filter(held), part.raw.filter(held), sample)


def unknown(row: int, text: str, named: Format | None = None) -> Problem:
    """What is said of a record that no format knows, or not the one that the recipe names."""
    record = record_of(text) or {}
    keys = ", ".join(sorted(map(str, record))[:12])[:200]
    known = f"not of the format {named.name}" if named else "of no known format"
    return Problem(row, "unknown_format", f"the record is {known}; its keys: {keys}", text.encode()[:RAW_BYTES])


def stray(text: str, form: Format, named: bool) -> Format | None:
    """Whose a record is that a format's SQL found wanting: `form` where it is its own after all. Of a named format it is
    that one's or none's."""
    record = record_of(text)
    if named:
        return form if record is None or form.accepts(record) else None
    return form if record is None else whose(record, form)
