"""Records of a log object, with their places: lines of JSONL, elements of a JSON array, or whole JSON objects.

    for part in read_records(chunks):
        part.rows, part.raw        # Arrow: 1-based line or element, and its text; or a Problem

Lines are split on Arrow buffers, not one by one in Python. What cannot be text becomes a Problem, and the rest goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from resources.decompress import DamagedError

HEAD_BYTES = 1 << 20
WHOLE_BYTES = 512 << 20
"""A JSON array is read whole: beyond this it has to be JSONL."""
CHUNK_BYTES = 32 << 20
SAMPLE = 8
"""Records looked at to tell a file's format."""
RAW_BYTES = 4096
_BLANK = 8


@dataclass
class Records:
    """Some records of one object. `sample` (the first ones, parsed) comes with the first of them only."""

    rows: pa.Array
    raw: pa.Array
    sample: list[dict]


@dataclass
class Problem:
    """What could not become a record. row 0 means the object as a whole."""

    row: int
    error_code: str
    message: str
    raw: bytes


def read_records(chunks: Iterator[bytes]) -> Iterator[Records | Problem]:
    """Splits an object's content into records."""
    head, rest, damage = _take(chunks, HEAD_BYTES)
    head = head.removeprefix(b"\xef\xbb\xbf")
    if not head.strip():
        if damage:
            yield _damaged(damage, b"")
        return
    first_line = head.lstrip().split(b"\n", 1)[0]
    opening = head.lstrip()[:1]
    lines_surely = opening == b"{" and len(head) >= HEAD_BYTES and _sample(head)
    if _record(first_line) is None and opening in (b"[", b"{") and not lines_surely:
        whole, rest, damage = _more(head, rest, damage)
        elements = _array(whole, damage) if opening == b"[" else _objects(whole)
        if elements is not None:
            yield from elements
            if damage:
                yield _damaged(damage, b"")
            return
        head = whole
    sample = _sample(head)
    if not sample:
        yield _damaged(damage, head) if damage else _no_records(head)
        return
    yield from _lines(head, rest, damage, sample)


def _take(chunks: Iterator[bytes], size: int) -> tuple[bytes, Iterator[bytes], DamagedError | None]:
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


def _more(head: bytes, rest: Iterator[bytes], damage: DamagedError | None):
    """Up to WHOLE_BYTES of content, where its form can only be told from the whole."""
    if damage:
        return head, rest, damage
    more, rest, damage = _take(rest, WHOLE_BYTES)
    return head + more, rest, damage


def _record(line: bytes) -> dict | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _sample(head: bytes) -> list[dict]:
    """The first few lines that are JSON objects. The last line may be cut: a cut line does not parse."""
    found = []
    start = 0
    while start < len(head):
        end = head.find(b"\n", start)
        line, start = (head[start:end], end + 1) if end >= 0 else (head[start:], len(head))
        record = _record(line)
        if record is not None:
            found.append(record)
            if len(found) == SAMPLE:
                break
    return found


def _array(whole: bytes, damage: DamagedError | None) -> Iterator[Records | Problem] | None:
    """The elements of one JSON array of objects; None where the content is no such thing."""
    try:
        text = whole.decode("utf-8")
    except UnicodeDecodeError:
        return None
    decoder, position = json.JSONDecoder(), text.index("[") + 1
    elements, parsed, ending = [], [], None
    while True:
        position = _past_space(text, position)
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        elements.append(text[position:end])
        if len(parsed) < SAMPLE and isinstance(value, dict):
            parsed.append(value)
        position = _past_space(text, end)
        ending = text[position : position + 1]
        if ending != ",":
            break
        position += 1
    if not parsed or (ending == "]" and text[position + 1 :].strip()):
        return None
    return _array_parts(elements, parsed, ending, text, position, damage)


def _array_parts(elements, parsed, ending, text, position, damage) -> Iterator[Records | Problem]:
    rows = pa.array(range(1, len(elements) + 1), pa.int64())
    yield Records(rows, pa.array(elements, pa.large_string()), parsed)
    if ending != "]" and not damage:
        message = f"the JSON array breaks off after element {len(elements)}; write it anew, or as JSON lines"
        yield Problem(len(elements) + 1, "malformed_json", message, text[position:].encode()[:RAW_BYTES])


def _objects(whole: bytes) -> Iterator[Records | Problem] | None:
    """JSON objects that span several lines, one after the other; None where the content is no such thing."""
    try:
        text = whole.decode("utf-8")
    except UnicodeDecodeError:
        return None
    decoder, position, elements, parsed = json.JSONDecoder(), _past_space(text, 0), [], []
    while position < len(text):
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return None
        elements.append(text[position:end])
        if isinstance(value, dict) and len(parsed) < SAMPLE:
            parsed.append(value)
        position = _past_space(text, end)
    rows = pa.array(range(1, len(elements) + 1), pa.int64())
    return iter([Records(rows, pa.array(elements, pa.large_string()), parsed)]) if parsed else None


def _past_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _no_records(head: bytes) -> Problem:
    if head.lstrip()[:1] in (b"{", b"["):
        return Problem(0, "malformed_json", "no line of the file is a whole JSON object", head[:RAW_BYTES])
    try:
        head[: len(head) - 4].decode("utf-8")
    except UnicodeDecodeError:
        return Problem(0, "invalid_utf8", "the file is binary, not a log in UTF-8 text", head[:RAW_BYTES])
    return Problem(0, "unknown_format", "no line of the file is a JSON object", head[:RAW_BYTES])


def _damaged(damage: DamagedError, raw: bytes) -> Problem:
    return Problem(0, "damaged_file", f"{damage}; the records before that were read", raw[:RAW_BYTES])


def _lines(head: bytes, rest: Iterator[bytes], damage: DamagedError | None, sample: list[dict]):
    """JSON lines, in parts of whole lines."""
    carry, row = head, 1
    while True:
        if not damage:
            more, rest, damage = _take(rest, CHUNK_BYTES)
        else:
            more = b""
        last = not more or damage is not None
        data = carry + more
        cut = data.rfind(b"\n") + 1
        if last and not damage:
            cut = len(data)
        carry = data[cut:]
        if cut:
            records, problems, row = _split(data[:cut], row)
            yield Records(*records, sample)
            yield from problems
            sample = []
        if last:
            break
    if damage:
        yield _damaged(damage, carry)


def _split(data: bytes, row: int):
    """Whole lines as Arrow text without a copy of each; lines that are not UTF-8 apart, blank ones left out."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10).astype(np.int64) + 1
    if not len(ends) or ends[-1] != len(data):
        ends = np.append(ends, len(data))
    offsets = np.concatenate([np.zeros(1, np.int64), ends])
    raw = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    rows = np.arange(row, row + len(ends), dtype=np.int64)
    kept = np.ones(len(ends), dtype=bool)
    for index in np.flatnonzero(np.diff(offsets) <= _BLANK):
        kept[index] = bool(data[offsets[index] : offsets[index + 1]].strip())
    problems = []
    try:
        text = raw.cast(pa.large_string())
    except pa.ArrowInvalid:
        text = None
        for index in np.flatnonzero(kept):
            line = data[offsets[index] : offsets[index + 1]]
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                kept[index] = False
                problems.append(Problem(int(rows[index]), "invalid_utf8", "the line is not UTF-8 text",
                                        line.rstrip(b"\r\n")[:RAW_BYTES]))
    numbers = pa.array(rows, pa.int64())
    if not kept.all():
        mask = pa.array(kept)
        numbers, text = numbers.filter(mask), (raw if text is None else text).filter(mask).cast(pa.large_string())
    return (numbers, text), problems, row + len(ends)
