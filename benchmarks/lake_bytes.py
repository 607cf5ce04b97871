"""Searches every byte of a lake for words: the proof of benchmarks/forget.py, which shares no code with the erasure.

    places_of({"SENTINEL-1"}, Path("lake"))      # ["tables/interactions/...parquet: column messages", ...]

Raw bytes of every file, names of files included; every value of every column of each Parquet file, page statistics included;
every value of each SQLite database besides its raw pages; gzip and zlib streams inside values are not looked into.
"""

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

CHUNK = 8 << 20


def places_of(words: Collection[str], root: Path) -> list[str]:
    """Each place that holds one of the words, with the file's path in the lake."""
    found = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if any(word in name for word in words):
            found.append(f"{name}: its name")
        if path.is_file() and not path.is_symlink():
            found += [f"{name}: {where}" for where in _in_file(words, path)]
    return found


def _in_file(words: Collection[str], path: Path) -> Iterator[str]:
    if _raw(words, path):
        yield "raw bytes"
    with path.open("rb") as file:
        start = file.read(16)
    if start[:4] == b"PAR1":
        yield from _in_parquet(words, path)
    elif start == b"SQLite format 3\0":
        yield from _in_database(words, path)


def _raw(words: Collection[str], path: Path) -> bool:
    sought = [word.encode() for word in words]
    longest, before = max(map(len, sought)), b""
    with path.open("rb") as file:
        while part := file.read(CHUNK):
            window = before + part
            if any(word in window for word in sought):
                return True
            before = window[-longest:]
    return False


def _in_parquet(words: Collection[str], path: Path) -> Iterator[str]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(16_384):
            for field, column in zip(batch.schema, batch.columns, strict=True):
                if any(_holds(column, word) for word in words):
                    yield f"column {field.name}"


def _holds(column: pa.Array, word: str) -> bool:
    """Whether any value, or part of a nested value, has the word."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return any(value is not None and word.encode() in value for value in column.to_pylist())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return bool(pc.any(pc.match_substring(column, word)).as_py())
    if pa.types.is_map(kind):
        return _holds(column.keys, word) or _holds(column.items, word)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _holds(column.flatten(), word)
    if pa.types.is_struct(kind):
        return any(_holds(part, word) for part in column.flatten())
    return False


def _in_database(words: Collection[str], path: Path) -> Iterator[str]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        for line in database.iterdump():
            if any(word in line for word in words):
                yield "a row of the database"
                return
