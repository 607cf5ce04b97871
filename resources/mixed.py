"""Records of other formats than their file's: each goes to its own format's SQL, what no format knows to quarantine.

    if not uniform(part.sample, form): ...      # then every record of the file is asked
    for own, records in by_format(part, form): ...

A file whose first records are all of one format is read as that; of its records only those are asked that the format's
SQL could make nothing of (`whose`). So a uniform file costs nothing, and none of its odd lines becomes a half-empty row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from resources.formats import FORMATS, Format
from resources.log_reader import RAW_BYTES, Problem, Records, record_of


def uniform(sample: list[dict], form: Format) -> bool:
    return all(map(form.recognises, sample))


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


def unknown(row: int, text: str) -> Problem:
    """What is said of a record that no format knows."""
    record = record_of(text) or {}
    keys = ", ".join(sorted(map(str, record))[:12])[:200]
    return Problem(row, "unknown_format", f"the record is of no known format; its keys: {keys}", text.encode()[:RAW_BYTES])


def strays(texts: list[str], form: Format) -> list[Format | None]:
    """Of records that a format's SQL found wanting: whose each one is. `form` itself where it is its own after all."""
    return [form if (record := record_of(text)) is None else whose(record, form) for text in texts]
