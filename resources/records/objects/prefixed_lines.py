"""Reads JSON records behind what a container runtime (CRI; pieces marked P are joined), syslog or a logger writes in front of
them. A time in front is that of a record without a time; lines without JSON become {"log_line": true}.
"""

import re
from collections.abc import Iterator

import pyarrow as pa

from model_ops.chat_apis import json_text
from resources.records.moments import moment_of
from resources.records.objects.decompress import DamagedError
from resources.records.objects.log_reader import RecordProblem, Records, damaged, record_of, text_lines

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
    """The JSON object that ends a line, with the time of its prefix."""
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
