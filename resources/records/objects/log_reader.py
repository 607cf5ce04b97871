"""Splits a log object into records: lines of JSONL, elements of a JSON array, or whole JSON objects. Lines are split on Arrow
buffers, not one by one in Python. A line that cannot be text becomes a RecordProblem; reading goes on."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from resources.records.objects.decompress import DamagedError
from resources.records.objects.unreadable import container_of, convert, encoding_of, is_archive, kind_of

HEAD_BYTES = 1 << 20
"""Bytes that are read to recognise how the records are written."""
RECORD_BYTES = 64 << 20
"""Longest line or array element, in bytes; a longer one goes to quarantine."""
LONGEST_BYTES = 16 << 20
"""Longest record in bytes of text, without the pictures and files that references replaced: DuckDB needs about 20 times as much
memory for it. A request or response that is paired may have half of it."""
CHUNK_BYTES = 16 << 20
SAMPLE = 8
"""Records that are read to recognise a file's format."""
RAW_BYTES = 4096
SEPARATOR = b"\x1e"
"""Before each record of a JSON text sequence (RFC 7464)."""
_BLANK = 8
_SPACES = b" \t\n\r\v\f"


@dataclass
class Records:
    """Some records of one object."""

    rows: pa.Array
    """Lines or elements, from 1."""
    raw: pa.Array
    """Their texts."""
    sample: list[dict]
    """The first ones, parsed, in the first part."""
    chunks: bool = False
    """Some are chunks of a stream."""


@dataclass
class RecordProblem:
    """A line or element that is not a record, for the quarantine."""

    row: int
    """0: the object as a whole."""
    error_code: str
    message: str
    raw: bytes


def read_records(chunks: Iterator[bytes]) -> Iterator[Records | RecordProblem]:
    head, rest, damage = take(chunks, HEAD_BYTES)
    head = head.removeprefix(b"\xef\xbb\xbf")
    spanning = None
    if head.lstrip().startswith(SEPARATOR):
        spanning = re.search(rb"\n[ \t]*[^\x1e\s]", head)  # a record on several lines
        # never inside JSON, in which it is written as an escape
        head, rest = head.replace(SEPARATOR, b" "), (chunk.replace(SEPARATOR, b" ") for chunk in rest)
    if is_archive(head):
        yield _no_records(head)
        return
    if not head.strip():
        if damage:
            yield damaged(damage, b"")
        elif head:
            yield from _lines(head, rest, damage)
        return
    form = "objects" if spanning else _form(head, whole=damage is not None or len(head) < HEAD_BYTES)
    yield from _lines(head, rest, damage) if form == "lines" else _values(head, rest, damage, form == "array")


def take(chunks: Iterator[bytes], size: int) -> tuple[bytes, Iterator[bytes], DamagedError | None]:
    """The first `size` bytes or more, the chunks after them, and the damage that ended the reading, if any."""
    taken, total = [], 0
    try:
        for chunk in chunks:
            taken.append(chunk)
            total += len(chunk)
            if total >= size:
                break
    except DamagedError as error:
        return b"".join(taken), iter(()), error
    return b"".join(taken), chunks, None


def _form(head: bytes, whole: bool) -> str:
    """How the records are written: "lines", "array", or "objects" (that span lines)."""
    head = head.lstrip()
    opening = head[:1]
    first_line, _, others = head.partition(b"\n")
    if opening not in (b"[", b"{") or record_of(first_line) is not None:
        return "lines"
    if opening == b"[" and others.strip() and (first := _value(first_line)) is not None:
        # one list of records per line, or lines one of which is a list
        return "array" if not first or isinstance(first[0], dict) else "lines"
    from resources.records.objects.json_values import Values  # not needed for JSON lines; numba takes a while to import

    form = "array" if opening == b"[" else "objects"
    seen = Values(in_array=opening == b"[")
    starts, ends = seen.find(head)
    if len(starts):
        return form if record_of(head[starts[0] : ends[0]]) is not None else "lines"
    if opening == b"[":
        return form if head[1:].lstrip()[:1] == b"{" or seen.closed else "lines"
    return "lines" if whole or not others or _sample(head) else form


def record_of(text: bytes | str) -> dict | None:
    """The JSON object in a text; None for anything else and for excessive nesting."""
    value = _value(text)
    return value if isinstance(value, dict) else None


def _value(text: bytes | str) -> Any:
    try:
        # json would guess UTF-16 from some bytes, so they are decoded here
        return json.loads(text if isinstance(text, str) else text.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _sample(data: bytes) -> list[dict]:
    records: list[dict] = []
    start = 0
    while start < len(data) and len(records) < SAMPLE:
        end = data.find(b"\n", start)
        line, start = (data[start:end], end + 1) if end >= 0 else (data[start:], len(data))
        record = record_of(line)
        if record is not None:
            records.append(record)
    return records


def _no_records(head: bytes) -> RecordProblem:
    return RecordProblem(0, *(container_of(head) or kind_of(head)), head[:RAW_BYTES])


def damaged(damage: DamagedError, raw: bytes) -> RecordProblem:
    """The Problem of an object that ends early."""
    message = f"{damage}; the records before that were read; fetch or rewrite the file to read the rest"
    return RecordProblem(0, "damaged_file", message, raw[:RAW_BYTES])


def _too_long(row: int, what: str, raw: bytes) -> RecordProblem:
    message = f"the {what} is longer than {RECORD_BYTES >> 20} MiB; it was skipped, and the rest was read"
    return RecordProblem(row, "line_too_long", message, raw[:RAW_BYTES])


def _lines(head: bytes, rest: Iterator[bytes], damage: DamagedError | None) -> Iterator[Records | RecordProblem]:
    """JSON lines, in parts of whole lines. The first part must have a record, else the file is no log."""
    data, row, known, passing_over = head, 1, False, False
    while True:
        more = b""
        if not damage:
            more, rest, damage = take(rest, CHUNK_BYTES)
        last = not more or damage is not None
        if passing_over:  # the rest of a line that is too long is skipped
            end = more.find(b"\n") + 1
            data, passing_over = (more[end:], False) if end else (b"", True)
        else:
            data += more
        cut = len(data) if last and not damage else data.rfind(b"\n") + 1
        if cut:
            records, problems, row = _split(data, cut, row)
            sample = [] if known else _sample(data[:cut])
            if not known and not sample and (problems or len(records[0])):
                yield damaged(damage, head) if damage else _no_records(head)
                return
            known = known or bool(sample)
            if len(records[0]):
                yield Records(*records, sample=sample)
            yield from problems
        data = data[cut:]
        if len(data) > RECORD_BYTES:
            yield _too_long(row, "line", data)
            data, row, passing_over = b"", row + 1, True
        if last:
            break
    if damage:
        yield damaged(damage, data)


def _split(data: bytes, cut: int, row: int):
    octets = np.frombuffer(data, np.uint8)[:cut]
    ends = np.flatnonzero(octets == 10).astype(np.int64) + 1
    if not len(ends) or ends[-1] != cut:
        ends = np.append(ends, cut)
    offsets = np.concatenate([np.zeros(1, np.int64), ends])
    rows = np.arange(row, row + len(ends), dtype=np.int64)
    usable = _not_blank(octets, offsets)
    raw = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return *_texts(rows, raw, usable, "line"), row + len(ends)


def _not_blank(octets: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    usable = np.diff(offsets) > _BLANK
    short = np.flatnonzero(~usable)
    for place in range(_BLANK):
        at = offsets[short] + place
        inside = at < offsets[short + 1]
        usable[short[inside]] |= ~np.isin(octets[at[inside]], np.frombuffer(_SPACES, np.uint8))
    return usable


def _texts(rows: np.ndarray, raw: pa.LargeBinaryArray, usable: np.ndarray, what: str):
    """(rows, texts) of the usable records, and a RecordProblem for each that is too long or not UTF-8."""
    problems = []
    lengths = np.diff(np.frombuffer(raw.buffers()[1], np.int64, len(raw) + 1, raw.offset * 8))
    for index in np.flatnonzero(lengths > RECORD_BYTES):
        usable[index] = False
        problems.append(_too_long(int(rows[index]), what, raw[index].as_buffer()[:RAW_BYTES].to_pybytes()))
    try:
        text = raw.cast(pa.large_string())
    except pa.ArrowInvalid:
        text = raw
        for index in np.flatnonzero(usable):
            record = raw[index].as_py()
            try:
                record.decode("utf-8")
            except UnicodeDecodeError:
                usable[index] = False
                looks, encoding = encoding_of(record)
                message = f"the {what} is not UTF-8 text, {looks}; if the whole file is so, {convert(encoding)}"
                problems.append(RecordProblem(int(rows[index]), "invalid_utf8", message, record.rstrip(b"\r\n")[:RAW_BYTES]))
    numbers = pa.array(rows, pa.int64())
    if not usable.all():
        numbers, text = numbers.filter(pa.array(usable)), text.filter(pa.array(usable)).cast(pa.large_string())
    return (numbers, text), problems


def _values(
    head: bytes, rest: Iterator[bytes], damage: DamagedError | None, in_array: bool
) -> Iterator[Records | RecordProblem]:
    """Elements of JSON arrays, or objects that span lines, in parts of whole values."""
    from resources.records.objects.json_values import Values

    what, seen, data, row, known, passing_over = "element" if in_array else "object", Values(in_array), head, 1, False, False
    while True:
        starts, ends = seen.find(data)
        if passing_over and len(ends):  # the end of a value that is too long, of which nothing was kept
            starts, ends, passing_over, row = starts[1:], ends[1:], False, row + 1
        if len(ends):
            offsets = np.concatenate([np.zeros(1, np.int64), np.stack([starts, ends], axis=1).ravel()])
            raw = pa.LargeBinaryArray.from_buffers(
                pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
            ).take(pa.array(np.arange(1, len(offsets) - 1, 2)))
            rows = np.arange(row, row + len(ends), dtype=np.int64)
            records, problems = _texts(rows, raw, np.ones(len(ends), dtype=bool), what)
            row += len(ends)
            if len(records[0]):
                parsed = [] if known else [record_of(text.as_py()) for text in records[1][:SAMPLE]]
                known = True
                yield Records(*records, sample=[record for record in parsed if record is not None])
            yield from problems
        if damage:
            break
        keep = len(data) if seen.begin is None else seen.begin
        if not passing_over and len(data) - keep > RECORD_BYTES:
            yield _too_long(row, what, data[keep : keep + RAW_BYTES])
            passing_over = True
        if passing_over:
            keep = len(data)
        more, rest, damage = take(rest, CHUNK_BYTES)
        if not more:
            data = data[keep:]
            seen.shift(keep)
            break
        data = data[keep:] + more
        seen.shift(keep)
    yield from _leftover(seen, data, damage, row, what, in_array)


def _leftover(seen, data: bytes, damage, row: int, what: str, in_array: bool) -> Iterator[RecordProblem]:
    if damage:
        yield damaged(damage, data[seen.begin :] if seen.begin is not None else b"")
    elif seen.begin is not None or not seen.closed:
        text = "array" if in_array else "text"
        message = f"the JSON {text} breaks off after {what} {row - 1}; rewrite it, or write JSON lines"
        yield RecordProblem(row, "malformed_json", message, data[seen.begin or 0 :][:RAW_BYTES])


def text_lines(chunks: Iterator[bytes], damage: list[DamagedError]) -> Iterator[str]:
    """The lines of a text, each with its end."""
    left, more = b"", True
    while more:
        try:
            chunk = next(chunks, b"")
        except DamagedError as error:
            damage.append(error)
            return
        more = bool(chunk)
        left += chunk
        cut = left.rfind(b"\n") + 1 if more else len(left)
        if not cut and len(left) <= RECORD_BYTES:
            continue
        block, left = left[: cut or len(left)], left[cut or len(left) :]
        yield from re.findall(r"[^\n]*\n|[^\n]+", block.decode("utf-8", "surrogateescape"))
