"""Reads the records of a log object of any kind: JSON in any form, Parquet, CSV, vLLM's log, or one text. Streamed answers are
joined (`streams`) and inline media replaced by references, in parts whose bytes have them."""

import re
import tempfile
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model_ops.chat_apis import json_text
from resources.records.inline_media import NEEDLES, referenced
from resources.records.moments import moment_of
from resources.records.objects.csv_reader import dialect_of, read_csv
from resources.records.objects.decompress import DamagedError, decompressed, utf8
from resources.records.objects.log_reader import (
    HEAD_BYTES,
    RAW_BYTES,
    RECORD_BYTES,
    RecordProblem,
    Records,
    damaged,
    read_records,
    record_of,
    take,
    text_lines,
)
from resources.records.objects.parquet_reader import MAGIC, read_parquet
from resources.records.objects.unreadable import container_of, kind_of
from resources.records.objects.vllm_log import is_vllm_log, read_vllm_log
from resources.records.providers.streams import NEEDLES as EVENTS
from resources.records.providers.streams import with_joined_events
from resources.records.streams import CHUNK, with_joined_response

TOGETHER = 8 << 20
SEARCHED = 200
"""First lines of which one must have a prefix and a record."""
LONGEST_PREFIX = 1_000
_CRI = re.compile(r"(\S+ (stdout|stderr)) ([FP]) (.*)", re.S)
_TIMES = ("timestamp", "ts", "created_at", "startTime", "start_time")


def is_prefixed(head: bytes) -> bool:
    """Whether one of the first lines is a prefix and a JSON object."""
    if re.search(rb"[\0-\x08]", head):  # an archive
        return False
    try:
        lines = head[: head.rfind(b"\n") + 1 or len(head)].decode("utf-8").splitlines()[:SEARCHED]
    except UnicodeDecodeError:
        return False
    first = next((line for line in lines if line.strip()), "").lstrip()
    if first[:1] in ("{", '"', "") or (first[0] == "[" and not re.match(r"\[[^\]\[\"]*[\dA-Z][^\]\[\"]*\]", first)):
        return False  # JSON itself
    return any(_record(line) or re.match(r"\S+ std(out|err) P \{", line) for line in lines)


def _record(line: str) -> dict | None:
    begins = (brace.start() for brace in re.finditer(r"\{", line[:LONGEST_PREFIX]))
    # a prefix may have braces, in pairs; else it is the begin of a record that does not parse
    prefixes = (line[:place] for place in begins if line.count("{", 0, place) == line.count("}", 0, place))
    split = ((prefix, record_of(line[len(prefix) :])) for prefix in prefixes if prefix.strip())
    prefix, record = next((each for each in split if each[1] is not None), ("", None))
    if record is not None and not any(name in record for name in _TIMES):
        words = prefix.split()
        times = (moment_of(" ".join(words[:count]).rstrip(" :,-|")) for count in range(min(len(words), 6), 0, -1))
        if time := next(filter(None, times), None):
            record["timestamp"] = time
    return record


def read_prefixed(chunks: Iterator[bytes]) -> Iterator[Records | RecordProblem]:
    """The records, at the first line of each."""
    damage: list[DamagedError] = []
    rows: list[int] = []
    raws: list[str] = []
    open_pieces: dict[str, tuple[int, str]] = {}
    size, sample = 0, True
    for row, line in enumerate(text_lines(chunks, damage), 1):
        line = line.rstrip("\r\n")
        if piece := _CRI.fullmatch(line):
            begun, text = open_pieces.pop(piece[2], (row, f"{piece[1]} F "))
            row, line = begun, text + piece[4]
            if piece[3] == "P":
                open_pieces[piece[2]] = (row, line)
                continue
        if not line.strip():
            continue
        record = record_of(line) or _record(line)
        rows.append(row)
        # a line that breaks off stays as it is, from its first brace: it is no JSON
        raws.append(json_text(record) if record else line[line.index('{"') :] if '{"' in line else '{"log_line": true}')
        size += len(raws[-1])
        if size >= TOGETHER:
            yield _records(rows, raws, sample)
            rows, raws, size, sample = [], [], 0, False
    for begun, text in open_pieces.values():  # the end is missing
        rows.append(begun)
        raws.append(text[text.find("{") :])
    if rows:
        yield _records(rows, raws, sample)
    if damage:
        yield damaged(damage[0], b"")


def _records(rows: list[int], raws: list[str], sample: bool) -> Records:
    parsed = [record for raw in raws if (record := record_of(raw)) and "log_line" not in record][:8] if sample else []
    return Records(
        pa.array(rows, pa.int64()),
        pa.array(raws, pa.large_string()),
        parsed,
        any("chat.completion.chunk" in raw for raw in raws),
    )


JSON_ENDINGS = (".json", ".jsonl", ".ndjson")
TABLE_ENDINGS = (".csv", ".tsv", ".tab")


def read_object(file: Any, uri: str, plain_text: bool) -> Iterator[Records | RecordProblem]:
    """The records of one object; plain_text: a file that is not JSON is one. Raises OSError where it cannot be read whole."""
    head = file.read(len(MAGIC))
    whole = _Rejoined(head, file)
    if head == MAGIC:
        with _seekable(whole) as spooled:
            yield from map(_normalised_part, read_parquet(spooled))
    else:
        head, rest, damage = take(utf8(decompressed(whole)), HEAD_BYTES)
        content = _again(head, rest, damage)
        named = _ends_in(uri, TABLE_ENDINGS)
        if plain_text and not named and not _ends_in(uri, JSON_ENDINGS):
            parts = _read_text(content)
        elif is_vllm_log(head):
            parts = read_vllm_log(content)
        elif dialect := dialect_of(head, len(head) < HEAD_BYTES and not damage, named):
            parts = read_csv(content, dialect)
        elif is_prefixed(head):
            parts = read_prefixed(content)
        else:
            parts = read_records(content)
        yield from map(_normalised_part, parts)


def _again(head: bytes, rest: Iterator[bytes], damage: DamagedError | None) -> Iterator[bytes]:
    """The content from its first byte, without a byte order mark."""
    yield head.removeprefix(BOM_UTF8)
    yield from rest
    if damage:
        raise damage


class _Rejoined:
    """A file whose first bytes were read already, as one stream from its first byte. It is read once."""

    def __init__(self, head: bytes, file: Any):
        self._head, self._file = head, file

    def read(self, size: int) -> bytes:
        head, self._head = self._head, b""
        return head + self._file.read(size - len(head))


@contextmanager
def _seekable(whole: _Rejoined) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile(prefix="millrace-") as copy:
        while content := whole.read(4 << 20):
            copy.write(content)
        copy.seek(0)
        yield copy


def _normalised_part(part: Records | RecordProblem) -> Records | RecordProblem:
    return normalised(part) if isinstance(part, Records) else part


def normalised(part: Records) -> Records:
    """The records with streamed answers joined and inline media replaced by references."""
    needles = _needles_in(part.raw)
    if not needles:
        return part
    held, chunks = pa.array(np.zeros(len(part.raw), dtype=bool)), False
    for needle in needles:
        matches = pc.match_substring(part.raw, needle)
        if needle == CHUNK:  # in a response; lines of chunks are joined later
            whole = pc.match_substring(part.raw, '"response"')
            chunks = bool(pc.any(pc.and_not(matches, whole)).as_py())
            matches = pc.and_(matches, whole)
        held = pc.or_(held, matches)
    places = np.flatnonzero(held.to_numpy(zero_copy_only=False))
    if not len(places):
        return replace(part, chunks=chunks)
    raw = part.raw.to_pylist()
    for place in places:
        raw[place] = _normalised_text(raw[place])
    sample = [normalised_record(record) for record in part.sample]
    return Records(part.rows, pa.array(raw, pa.large_string()), sample, chunks)


def _needles_in(raw: pa.Array) -> list[str]:
    text = raw.buffers()[2]
    content = text.to_pybytes() if text else b""
    return [needle for needle in (CHUNK, *EVENTS, *NEEDLES) if needle.encode() in content]


def _normalised_text(raw: str) -> str:
    record = record_of(raw)
    if record is None:  # later checks report it
        return raw
    try:
        return json_text(normalised_record(record))
    except (ValueError, RecursionError):
        return raw


def normalised_record(record: dict) -> dict:
    try:
        return referenced(with_joined_events(with_joined_response(record)))
    except RecursionError:  # nested too deeply: it stays as written
        return record


def _ends_in(uri: str, endings: tuple[str, ...]) -> bool:
    name = uri.lower()
    for packed in (".gz", ".zst", ".zstd"):
        name = name.removesuffix(packed)
    return name.endswith(endings)


def _read_text(chunks: Iterator[bytes]) -> Iterator[Records | RecordProblem]:
    """A whole file as one record; a file whose first line is a JSON object is read as JSON lines."""
    taken, size, damage = [], 0, None
    try:
        for chunk in chunks:
            taken.append(chunk)
            size += len(chunk)
            if size > RECORD_BYTES:
                message = f"a text file is read as one record of at most {RECORD_BYTES >> 20} MiB: split it"
                yield RecordProblem(0, "too_long", message, taken[0][:RAW_BYTES])
                return
    except DamagedError as error:
        damage = error
    content = b"".join(taken).removeprefix(b"\xef\xbb\xbf")
    if damage:
        yield RecordProblem(0, "damaged_file", f"{damage}; a text file is read whole or not at all", content[:RAW_BYTES])
    elif record_of(content.lstrip().split(b"\n", 1)[0]) is not None:
        yield from read_records(iter([content]))
    elif content.strip():
        try:
            record = {"text": content.decode("utf-8")}
        except UnicodeDecodeError:
            yield RecordProblem(0, *(container_of(content) or kind_of(content)), content[:RAW_BYTES])
            return
        raw = pa.array([json_text(record)], pa.large_string())
        yield Records(pa.array([1], pa.int64()), raw, [record])
