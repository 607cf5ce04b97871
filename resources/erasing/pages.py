"""Erases what reports, logs and Dagster's history show of erased rows.

Searched are all files of the lake but tables, Parquet files, weights and the catalog, and Dagster's folder wherever it lies.
Markdown and HTML that show text are replaced by a note, strings of JSON and of databases, lines of other text and ids by
[erased]; a line of JSON with the row_id of an erased row goes. Databases are rewritten whole (VACUUM), so that their free pages
hold nothing. Files of models are never changed: a model that shows text is named.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from model_ops.files import write_text
from resources.erasing.journal import ForgetError
from resources.erasing.sought import ErasedTexts, SearchMatch
from resources.lake import LakeLayout, sql_text
from resources.launching import home_of
from resources.manifests import BESIDE, File, counted_as, note_erased, read_manifest
from resources.reading import CHATS

LARGEST = 1 << 30
"""Larger files are not searched: weights, arrays."""

NOTE = "Rows that this page showed were erased. The next run writes it again.\n"

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
        note_erased(
            home,
            file,
            erasure,
            rows=0,
            learnt=False,
            digest=read_manifest(home).digest,
            counted_as=counted_as(home, relative) if counts_only else None,
        )
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
        return NOTE
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
