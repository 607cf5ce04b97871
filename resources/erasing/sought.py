"""Finds erased ids and texts in bytes: in reports, logs and databases that show rows.

A text is found by pieces of 12 to 32 characters that look the same in plain text, JSON and HTML, and, where it is not ASCII, as
JSON escapes it: an excerpt of 64 characters or more is found, a few words may not be. Instructions (system and developer
messages) and phrases that other interactions have are not sought. A prompt shape's name (`zebra#09775227`) holds a word of a
prompt, so names that only erased rows have are sought like ids, also as keys of JSON: reports count by shape."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from model_ops.files import write_text
from resources.erasing.journal import ForgetError
from resources.lake import LakeLayout, sql_text
from resources.launching import home_of
from resources.manifests import BESIDE, File, counted_as, note_erased, read_manifest
from resources.reading import CHATS

SHORTEST, LONGEST = 12, 32
"""Characters of a piece."""

MOST_PIECES = 64
"""Pieces of one text that are sought, spread evenly."""

SHORTEST_ID = 8
"""Shorter ids are not sought: they would be found in any text."""

PAGE_LINES = 20
"""Lines of a string from which on it counts as a page of rows."""

NOTE = "[erased]"

_PLAIN = re.compile(r"[^\"\\<>&'\x00-\x1f\x7f\u2028\u2029\ufffd]+")
_PRODUCTS = {"system", "developer"}
_HASHED = 1 << 22
_BYTES_AT_A_TIME = 4 << 20
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class SearchMatch:
    """Whether a text, or an id, was found."""

    text: bool = False
    ids: bool = False

    def __bool__(self) -> bool:
        return self.text or self.ids


class ErasedTexts:
    """Byte strings to seek."""

    def __init__(self, pieces: Collection[str], ids: Collection[str], shapes: Collection[str] = ()):
        self._ids = sorted((each for each in ids if len(each) >= SHORTEST_ID), key=len, reverse=True)
        self._pieces = _Needles(encoded for piece in pieces for encoded in _spellings(piece))
        self._shapes = frozenset(shapes)
        named = sorted({encoded for shape in shapes for encoded in _spellings(shape)}, key=len, reverse=True)
        self._id_bytes = _Needles([*(each.encode() for each in self._ids), *named])
        # a shape's name may be the end of another's: it counts where a word begins
        words = (re.escape(each.decode("utf-8", "surrogatepass")) for each in named)
        sought = [*map(re.escape, self._ids), *(rf"(?<!\w){word}" for word in words)]
        self._any_id = re.compile("|".join(sought)) if sought else None

    @classmethod
    def of(
        cls, texts: Iterable[str], ids: Collection[str], others: Iterable[str] = (), shapes: Collection[str] = ()
    ) -> ErasedTexts:
        """texts: messages and answers, as JSON. others: those of other interactions. shapes: names of prompt shapes."""
        pieces = {piece for text in texts for said in _said(text) for piece in _some(list(pieces_of(said)))}
        common = _Needles(piece.encode("utf-8", "surrogatepass") for piece in pieces).present_in(
            "\n".join(others).encode("utf-8", "surrogatepass")
        )
        return cls({piece for piece in pieces if piece.encode("utf-8", "surrogatepass") not in common}, ids, shapes)

    def __bool__(self) -> bool:
        return bool(self._any_id) or len(self._pieces) > 0

    def in_bytes(self, content: bytes) -> SearchMatch:
        return SearchMatch(self._pieces.are_in(content), self._id_bytes.are_in(content))

    def cleaned(self, value: Any) -> Any:
        """A JSON value without erased texts and ids. Keys that are no prompt shape stay, and so do the classes
        of Dagster's events."""
        if isinstance(value, str):
            return self.cleaned_text(value)
        if isinstance(value, list):
            return [self.cleaned(item) for item in value]
        if isinstance(value, dict):
            return {
                NOTE if key in self._shapes else key: item if key == "__class__" else self.cleaned(item)
                for key, item in value.items()
            }
        return value

    def cleaned_text(self, text: str) -> str:
        """A string; as a whole replaced by a note if it shows erased text, or, of several lines, an erased id: a page of rows
        whose texts are not known any more."""
        match = self.in_bytes(text.encode("utf-8", "surrogatepass"))
        if match.text or (match.ids and text.count("\n") >= PAGE_LINES):
            return NOTE
        return self.without_ids(text) if match.ids else text

    def without_ids(self, text: str) -> str:
        return self._any_id.sub(NOTE, text) if self._any_id else text


def pieces_of(text: str) -> Iterator[str]:
    """The pieces of a text by which it is found."""
    for run in _PLAIN.findall(text):
        run = run.strip()
        for start in range(0, len(run), LONGEST):
            piece = run[start : start + LONGEST].strip()
            if len(piece) >= SHORTEST or (len(piece) >= 4 and not piece.isascii()):
                yield piece


def _some(pieces: list[str]) -> list[str]:
    return pieces[:: -(-len(pieces) // MOST_PIECES)] if pieces else pieces


def _said(text: str) -> Iterator[str]:
    """The strings of a JSON value of messages, without the product's instructions and without names of keys and roles."""
    try:
        waiting = [json.loads(text)]
    except ValueError:
        yield text
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield from _said(value) if value[:1] in "{[" and value[-1:] in "}]" else (value,)
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict) and value.get("role") not in _PRODUCTS:
            waiting.extend(item for key, item in value.items() if key not in ("role", "type"))


def _spellings(piece: str) -> Iterator[bytes]:
    yield piece.encode("utf-8", "surrogatepass")
    if not piece.isascii():
        escaped = json.dumps(piece)[1:-1]
        yield escaped.encode()
        yield json.dumps(escaped)[1:-1].encode()


class _Needles:
    """Byte strings of at least eight bytes, found by a table of their first eight bytes."""

    def __init__(self, needles: Iterable[bytes]):
        self._by_start: dict[int, list[bytes]] = {}
        for needle in set(needles):
            if len(needle) >= 8:
                self._by_start.setdefault(int.from_bytes(needle[:8], "little"), []).append(needle)
        starts = np.fromiter(self._by_start, np.uint64, len(self._by_start))
        self._starts = np.sort(starts)
        self._table = np.zeros(_HASHED, bool)
        self._table[_hashed(starts)] = True

    def __len__(self) -> int:
        return len(self._by_start)

    def are_in(self, content: bytes) -> bool:
        """Whether any of them is in the content."""
        return next(self._all_in(content), None) is not None

    def present_in(self, content: bytes) -> set[bytes]:
        """Those that are in the content."""
        return set(self._all_in(content))

    def _all_in(self, content: bytes) -> Iterator[bytes]:
        if not self._by_start:
            return
        for first in range(0, len(content) - 7, _BYTES_AT_A_TIME):
            part = content[first : first + _BYTES_AT_A_TIME + 7]
            windows = np.ndarray(len(part) - 7, np.dtype("<u8"), part, strides=(1,))
            places = np.flatnonzero(self._table[_hashed(windows)])
            places = places[np.isin(windows[places], self._starts)] if len(places) else places
            for at in places:
                for needle in self._by_start[int(windows[at])]:
                    if content.startswith(needle, first + int(at)):
                        yield needle


def _hashed(windows: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return ((windows * _FACTOR) >> np.uint64(64 - 22)).astype(np.int64)


LARGEST = 1 << 30
"""Larger files are not searched: weights, arrays."""

PAGE_NOTE = "Rows that this page showed were erased. The next run writes it again.\n"

SHOW_ROWS = ("rendered", "approval")
"""Names of pages that show texts beside the ids of their rows (model_ops/rendering/picture.py, approval.html)."""

_NOT_SEARCHED = {".parquet", ".safetensors", ".gguf", ".npy", ".bin", ".png", ".duckdb", ".lock", ".wal"}
_DATABASE = b"SQLite format 3\0"


@dataclass(frozen=True)
class ReportFile:
    """A file that shows erased rows."""

    path: Path
    match: SearchMatch
    model: bool = False
    """Whether the file belongs to a model: it is named, not changed."""
    rated: bool = False
    """Whether it is a rated chat answer, which is removed whole: a part of it would be read as another row."""


def pages_showing(lake: LakeLayout, sought: ErasedTexts) -> Iterator[ReportFile]:
    """Every file that shows erased texts or ids."""
    if not sought:
        return
    for path in _files(lake):
        content = path.read_bytes()
        beside = path.with_name(f"{path.name}-wal")
        if content.startswith(_DATABASE) and beside.exists():
            content += beside.read_bytes()
        if match := sought.in_bytes(content):
            yield ReportFile(path, match, lake.artefacts("model") in path.parents, lake.root / CHATS in path.parents)


def is_searched(path: Path, size: int) -> bool:
    """Whether a file may show text: not a table, weights or an array. size: in bytes."""
    is_beside = path.name in BESIDE or path.name.endswith(("-wal", "-shm"))
    return not is_beside and path.suffix.lower() not in _NOT_SEARCHED and size <= LARGEST


def clean_page(page: ReportFile, sought: ErasedTexts, erasure: str, counts_only: bool = False) -> None:
    """Erases what a file shows. counts_only: its artefact keeps its digest. Raises ForgetError for a database that another
    process holds."""
    if page.rated:
        page.path.unlink()
        return
    if page.path.open("rb").read(16) == _DATABASE:
        _clean_database(page.path, sought)
        return
    text = _cleaned(page, sought)
    home = _artefact(page.path)
    if home is not None:
        content = text.encode("utf-8")
        relative = page.path.relative_to(home).as_posix()
        file = File(path=relative, bytes=len(content), sha256=sha256(content).hexdigest())
        counts, digest = counted_as(home, relative) if counts_only else None, read_manifest(home).digest
        note_erased(home, file, erasure, rows=0, learnt=False, digest=digest, counted_as=counts)
    write_text(page.path, text)


def _files(lake: LakeLayout) -> Iterator[Path]:
    """Files to search."""
    skipped = {lake.root / "tables", lake.root / "answers", lake.root / ".erasing", lake.root / ".remembered"}
    homes = [child for child in sorted(lake.root.iterdir()) if child not in skipped]
    home = home_of(lake)
    if home.is_dir() and not home.is_relative_to(lake.root):
        homes.append(home)
    for place in homes:
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.is_file() and not path.is_symlink() and is_searched(path, path.stat().st_size):
                yield path


def _artefact(path: Path) -> Path | None:
    """The directory of the finished artefact that a file belongs to."""
    return next((folder for folder in path.parents if (folder / "manifest.json").exists()), None)


def _cleaned(page: ReportFile, sought: ErasedTexts) -> str:
    text = page.path.read_text(encoding="utf-8", errors="replace")
    ending = page.path.suffix.lower()
    if ending in (".md", ".html") and (page.match.text or page.path.stem in SHOW_ROWS):
        return PAGE_NOTE
    if ending == ".json":
        try:
            return json.dumps(sought.cleaned(json.loads(text)), indent=2, ensure_ascii=False) + "\n"
        except ValueError:
            pass  # a file that was cut short is cleaned as text
    if ending in (".md", ".html"):
        return sought.without_ids(text)
    return "".join(_cleaned_line(line, sought) for line in text.splitlines(keepends=True))


def _cleaned_line(line: str, sought: ErasedTexts) -> str:
    if not sought.in_bytes(line.encode("utf-8", "surrogatepass")):
        return line
    if _is_row(line, sought):
        return ""
    end = line[len(line.rstrip("\r\n")) :]
    return _cleaned_value(line[: len(line) - len(end)], sought) + end


def _is_row(line: str, sought: ErasedTexts) -> bool:
    """Whether a line is an erased row as JSON: it goes as a whole, with the instructions beside what was said."""
    try:
        row_id = json.loads(line).get("row_id")
    except (ValueError, AttributeError):
        return False
    return isinstance(row_id, str) and sought.in_bytes(row_id.encode("utf-8", "surrogatepass")).ids


def _cleaned_value(text: str, sought: ErasedTexts) -> str:
    """A text that may be JSON."""
    if text[:1] in "{[":
        try:
            return json.dumps(sought.cleaned(json.loads(text)))
        except ValueError:
            pass  # it only begins like JSON, or was cut short: cleaned as text
    return sought.cleaned_text(text)


def _clean_database(path: Path, sought: ErasedTexts) -> None:
    def is_sought(value: object) -> bool:
        return isinstance(value, str) and bool(sought.in_bytes(value.encode("utf-8", "surrogatepass")))

    try:
        with closing(sqlite3.connect(path, timeout=10)) as database:
            database.create_function("is_sought", 1, is_sought, deterministic=True)
            database.create_function("cleaned", 1, lambda value: _cleaned_value(value, sought), deterministic=True)
            database.execute("pragma secure_delete = on")
            for names in database.execute(sql_text("erasing/databases/columns")).fetchall():
                table, column = ('"' + name.replace('"', '""') + '"' for name in names)
                database.execute(sql_text("erasing/databases/clean").format(table=table, column=column))
            database.commit()
            database.execute("vacuum")
            database.execute("pragma wal_checkpoint(truncate)").fetchall()
    except sqlite3.OperationalError as error:
        raise ForgetError(
            f"{path} cannot be cleaned ({error}): stop `millrace ui` and whatever else reads Dagster's history, "
            "and run the same millrace forget again"
        ) from error
