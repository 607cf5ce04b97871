"""Reads CSV and TSV in bounded memory: one JSON object per row, without empty cells; JSON in a cell becomes a structure where a
format expects one. A broken row becomes a RecordProblem, and reading goes on with the next line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import duckdb
import pyarrow as pa

from resources.records.objects.decompress import DamagedError
from resources.records.objects.log_reader import RAW_BYTES, RECORD_BYTES, RecordProblem, Records, damaged, record_of, text_lines
from resources.records.objects.parquet_reader import records_of_batch
from resources.records.objects.unreadable import convert, encoding_of

SEPARATORS = ",\t;|"
SNIFFED_ROWS = 50
MOST_COLUMNS = 2_000
BATCH_BYTES, BATCH_ROWS = 8 << 20, 20_000
"""Characters and rows that are converted together."""
_NAME, _PLAIN_NAME = re.compile(r"[^\x00-\x1f{}\[\]<>]{0,100}"), re.compile(r"[\w.:@#/$-]{0,100}")
_COLUMN = re.compile(r"[A-Za-z_][\w.-]{0,60}")
_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)*")
_SEP_LINE = re.compile(rb"sep=(.)\r?\n", re.IGNORECASE)  # written by Excel


@dataclass(frozen=True)
class CsvDialect:
    separator: str
    """One character."""
    escape: str = ""
    """"\" where quotes are escaped with it, "" where they are doubled."""
    skipped: int = 0
    """Lines before the header."""

    def rows(self, lines: Iterable[str]) -> Iterator[list[str]]:
        """The cells of each row. Raises csv.Error for a row that is not written so."""
        csv.field_size_limit(2 * RECORD_BYTES)  # of the process; readers bound their rows
        return csv.reader(
            lines, delimiter=self.separator, doublequote=not self.escape, escapechar=self.escape or None, strict=True
        )


def dialect_of(head: bytes, whole: bool, named: bool) -> CsvDialect | None:
    """How a table's first bytes are written; None where they are no table. named: the file's name says that it is one."""
    if (said := _SEP_LINE.match(head)) is not None:
        return CsvDialect(said[1].decode("latin-1"), skipped=1)
    if head.lstrip()[:1] in (b"{", b"[", b"<", b""):
        return None
    head = head if whole else head[: head.rfind(b"\n") + 1]
    if _is_of_another_encoding(head):
        return None
    text = head.decode("utf-8", "surrogateescape")
    if any(record_of(line.strip()) is not None for line in text.split("\n")[:20]):
        return None  # JSON lines below a line of junk
    escapes = ("", "\\") if '\\"' in text else ("",)
    scores = {
        dialect: score
        for separator in SEPARATORS
        for escape in escapes
        if (score := _score(text, dialect := CsvDialect(separator, escape), named)) is not None
    }
    return max(scores, key=lambda dialect: scores[dialect]) if scores else None


def _is_of_another_encoding(head: bytes) -> bool:
    lines = [line for line in head.split(b"\n") if not line.isascii()]
    return bool(lines) and not any(_decodes(line) for line in lines)


def _decodes(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _score(text: str, dialect: CsvDialect, named: bool) -> tuple[float, int, int] | None:
    """How well the first rows fit their header: share of rows with as many columns, columns; None where it is no header."""
    rows = []
    try:
        rows = [row for row in islice(dialect.rows(io.StringIO(text, newline="")), SNIFFED_ROWS) if row]
        broken = 0
    except csv.Error:
        rows, broken = _unbroken(text, dialect)
    if not rows:
        return None
    header, body = [name.strip() for name in rows[0]], rows[1:]
    equal = sum(len(row) == len(header) for row in body) / max(len(body) + broken, 1)
    wordy = named or (len(body) >= 5 and equal == 1)
    names_columns = named and len(header) > 1 and all(map(_COLUMN.fullmatch, header))  # broken rows are reported one by one
    least = 0.5 if (body or broken) and not names_columns else 0
    if not 2 - named <= len(header) <= MOST_COLUMNS or not (body or broken or named) or equal < least:
        return None
    if not any(header) or not all((_NAME if wordy else _PLAIN_NAME).fullmatch(name) for name in header):
        return None
    if any(map(_NUMBER.fullmatch, header)) or (len(header) == 1 and set(SEPARATORS) & set(header[0])):
        return None  # a row of values, or columns with another separator
    return equal, len(header), -len(dialect.escape)


def _unbroken(text: str, dialect: CsvDialect) -> tuple[list[list[str]], int]:
    """The rows before and after broken ones, and the number of broken ones, of the first rows."""
    rows, broken = [], 0
    for _, row, _, fault in islice(_rows(iter(text.splitlines(keepends=True)), dialect), SNIFFED_ROWS):
        broken += bool(fault)
        rows += [row] if row and not fault else []
    return rows, broken


def read_csv(chunks: Iterator[bytes], dialect: CsvDialect) -> Iterator[Records | RecordProblem]:
    damage: list[DamagedError] = []
    rows = _rows(text_lines(chunks, damage), dialect)
    names: list[str] = []
    held: list[tuple[int, list[str]]] = []
    size, first = 0, True
    with duckdb.connect(config={"threads": 1}) as connection:
        for line, row, raw, fault in rows:
            if not names and line > dialect.skipped and not fault and row:
                names = [name.strip() or f"column_{place}" for place, name in enumerate(row, 1)]
                if twice := next((name for name in names if names.count(name) > 1), None):
                    message = f"two columns are called {twice[:100]}; give each column a name of its own"
                    yield RecordProblem(0, "malformed_row", message, b"")
                    return
                continue
            if not names or not (fault or any(row)):
                continue
            if not fault and len(row) != len(names):
                fault = f"the row has {len(row)} columns, and the header has {len(names)}"
            if not fault and not _is_text(row):
                looks, encoding = encoding_of(raw.encode("utf-8", "surrogateescape"))
                message = f"the row is not UTF-8 text, {looks}; if the whole file is so, {convert(encoding)}"
                yield RecordProblem(line, "invalid_utf8", message, _start(raw))
            elif fault:
                yield RecordProblem(line, "malformed_row", fault, _start(raw))
            else:
                held.append((line, row))
                size += len(raw)
            if size >= BATCH_BYTES or len(held) >= BATCH_ROWS:
                yield _records(connection, names, held, first)
                held, size, first = [], 0, False
        if held:
            yield _records(connection, names, held, first)
    if damage:
        yield damaged(damage[0], b"")


def _start(raw: str) -> bytes:
    return raw[:RAW_BYTES].encode("utf-8", "surrogateescape").rstrip(b"\r\n")[:RAW_BYTES]


def _is_text(row: list[str]) -> bool:
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        return False
    return True


def _records(
    connection: duckdb.DuckDBPyConnection, names: list[str], held: list[tuple[int, list[str]]], first: bool
) -> Records:
    columns = zip(*(row for _, row in held), strict=True)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([cell or None for cell in column], pa.string()) for column in columns], names=names
    )
    return records_of_batch(connection, batch, pa.array([line for line, _ in held], pa.int64()), first)


class _UnclosedError(Exception):
    """A row is longer than any record may be: a quote in it is not closed."""


class _Lines:
    """Lines for the csv module, which remembers those of the current row and can give them again."""

    def __init__(self, lines: Iterator[str]):
        self._lines = lines
        self._again: list[str] = []
        self.taken: list[str] = []
        self.size = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if self.size > RECORD_BYTES:
            raise _UnclosedError
        line = self._again.pop() if self._again else next(self._lines)
        self.taken.append(line)
        self.size += len(line)
        return line

    def begin(self) -> None:
        self.taken, self.size = [], 0

    def give_back(self) -> None:
        """All lines of the row except its first."""
        self._again += reversed(self.taken[1:])
        self.taken = self.taken[:1]


def _rows(source: Iterator[str], dialect: CsvDialect) -> Iterator[tuple[int, list[str], str, str]]:
    """(line, cells, text, fault) of each row; a fault says why the row cannot be read."""
    lines, line = _Lines(source), 1
    reader = iter(dialect.rows(lines))
    while True:
        lines.begin()
        fault, row = "", []
        try:
            row = next(reader)
        except StopIteration:
            return
        except _UnclosedError:
            fault = f"a quote that opens in this line is not closed within {RECORD_BYTES >> 20} MiB"
        except csv.Error as error:
            closed = "unexpected end" not in str(error)
            fault = f"the row is not as CSV is written ({error})" if closed else "a quote that opens in this line is not closed"
        if fault:
            lines.give_back()
            reader = iter(dialect.rows(lines))
        yield line, row, "".join(lines.taken), fault
        line += len(lines.taken)
