"""Reads the records of a source with `fields`: each as the fields say, or else by the format that recognises it."""

import json
from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa

from model_ops.chat_apis import json_text
from resources.records.field_mapping import FieldMapping, wrapped_pair
from resources.records.formats import FORMATS, MAPPED, Format
from resources.records.objects.log_reader import RAW_BYTES, RecordProblem, Records, record_of
from resources.records.objects.object_reader import normalised_record

PAIRS, CONVERSATIONS = FORMATS["openai_pairs"], FORMATS["messages"]


def by_fields(part: Records, fields: FieldMapping) -> Iterator[tuple[Format | None, Records | RecordProblem]]:
    """The records of a part by format, in order within each. What is neither mapped nor of a known format: RecordProblem."""
    groups: dict[str, tuple[Format, list[int], list[str]]] = {}
    for row, text in zip(part.rows.to_pylist(), part.raw.to_pylist(), strict=True):
        form, written = _read(text, fields)
        if form is None:
            yield None, RecordProblem(row, "unknown_format", written, text.encode()[:RAW_BYTES])
            continue
        _, rows, texts = groups.setdefault(form.name, (form, [], []))
        rows.append(row)
        texts.append(written)
    for form, rows, texts in groups.values():
        yield form, Records(pa.array(rows, pa.int64()), pa.array(texts, pa.large_string()), [])


@lru_cache(maxsize=256)
def _with_pair(fields: str, request: str, response: str) -> FieldMapping:
    return FieldMapping(**json.loads(fields), request=request, response=response)


def wrapped_fields(record: dict, fields: FieldMapping | None = None) -> FieldMapping | None:
    """The fields that read a record of no known format whose request and response have other names, such as `req` and `resp`,
    with the columns that `fields` adds; None for any other record."""
    pair = wrapped_pair(record)
    if pair is None or any(form.recognises(record) for form in FORMATS.values()):
        return None
    return _with_pair(json.dumps(fields.given if fields else {}), **pair)


def mapped_format(record: dict, fields: FieldMapping) -> tuple[Format, dict] | str:
    """The format that a mapped record is read by, and the record in its keys; or what the record lacks."""
    if fields.adds:
        form = _recognising(record) or _recognising(fields.without_columns(record))
        if form is not None and form.fills != ("feedback",):
            return form, record
        fields = wrapped_fields(record, fields) or fields
    if (logged := fields.as_logged(record)) is not None:
        form = next((form for form in FORMATS.values() if form.recognises(logged)), None)
        if form is not None and form is not PAIRS and f"fields:{form.name}" in MAPPED:
            return MAPPED[f"fields:{form.name}"], logged
    mapped = fields.mapped(record)
    if isinstance(mapped, str):
        return mapped
    mapped = normalised_record(mapped)
    feedback = FORMATS["edits" if "corrected" in mapped else "feedback"]
    kind = PAIRS if "request" in mapped else CONVERSATIONS if "messages" in mapped else feedback
    return MAPPED.get(f"fields:{kind.name}", kind), mapped


def _recognising(record: dict) -> Format | None:
    return next((form for form in FORMATS.values() if form.recognises(record)), None)


def _read(text: str, fields: FieldMapping) -> tuple[Format | None, str]:
    record = record_of(text)
    if record is None:  # later checks report it
        return MAPPED[f"fields:{PAIRS.name}"], text
    mapped = mapped_format(record, fields)
    if not isinstance(mapped, str):
        try:
            return mapped[0], text if mapped[1] is record else json_text(mapped[1])
        except (ValueError, RecursionError):  # nested too deeply, or numbers that are too long
            return mapped[0], "0"
    if (form := _recognising(record)) is not None:
        return form, text
    keys = ", ".join(sorted(map(str, record))[:12])[:200]
    return None, f"the record is of no known format and {mapped}; its keys: {keys}"
