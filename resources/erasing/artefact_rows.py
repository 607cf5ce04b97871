"""Erases rows from the Parquet files of finished datasets, in every version, and the answers that teachers gave to them.

A row is found by its ids: any column of text whose name ends in _id, and any list of text in _ids. The file is replaced as a
whole; erased.json beside the manifest counts the lost rows (resources/manifests/erased.py). An answer is kept under the hash of
its request, and goes if a dataset names that hash with an erased row, if its text is sought, or if no dataset names it: nothing
says whose it is, and the teacher can be asked again. Scores of a judge hold no text and stay."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from model_ops.files import replacement
from resources.erasing.selection import Selection
from resources.erasing.sought import ErasedTexts
from resources.lake import LakeLayout
from resources.manifests import SAMPLED, File, counted_as, erased, note_erased, read_manifest

BATCH_ROWS = 8_192

SAID = ("messages", "completion", "reasoning", "text", "prompt", "chosen", "rejected", "answer")
"""Columns of datasets with what people and models said."""


SHAPE = "prompt_shape"
_SHAPES = pa.schema([(SHAPE, pa.string()), ("is_erased", pa.bool_())])


@dataclass(frozen=True)
class Hit:
    """Erased rows in one file of a dataset."""

    node: str
    directory: Path
    path: str
    """Path in the version's directory."""
    rows: int
    learnt: bool
    """Whether models learn the file."""


def rows_in_artefacts(lake: LakeLayout, selection: Selection) -> Iterator[Hit]:
    """Every file of a finished dataset, and every list of a model's own answers, that holds erased rows. Only columns of ids
    are read."""
    ids = _Ids(selection)
    for manifest in sorted([*lake.root.glob("datasets/*/*/*/manifest.json"), *lake.root.glob("models/*/*/*/manifest.json")]):
        directory, kind = manifest.parent, manifest.parts[-5].removesuffix("s")
        workload, name, version = directory.parts[-3:]
        files = sorted(path for path in directory.rglob("*.parquet") if not path.name.startswith("."))
        if kind == "model":
            files = [path for path in files if path.name in SAMPLED]
        names = [path.relative_to(directory).as_posix() for path in files]
        for path, relative in zip(files, names, strict=True):
            if count := ids.count(path):
                learnt = kind == "dataset" and erased.is_learnt(relative, names)
                yield Hit(f"{kind}:{workload}/{name}@{version}", directory, relative, count, learnt)


def erase_rows(hit: Hit, selection: Selection, erasure: str, counts_only: bool = False) -> None:
    """Replaces the file by its other rows, and records the erasure first, so that a killed one can be tried again. counts_only:
    the dataset keeps its digest, and what learnt the rows is not tainted."""
    ids, path = _Ids(selection), hit.directory / hit.path
    with replacement(path) as temporary:
        with pq.ParquetFile(path) as file:
            codec = file.metadata.row_group(0).column(0).compression if file.metadata.num_row_groups else "ZSTD"
            with pq.ParquetWriter(temporary, file.schema_arrow, compression=codec) as writer:
                for batch in file.iter_batches(BATCH_ROWS):
                    writer.write_table(pa.Table.from_batches([batch]).filter(pc.invert(ids.in_batch(batch))))
        with temporary.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        file = File(path=hit.path, bytes=temporary.stat().st_size, sha256=digest)
        manifest = read_manifest(hit.directory)
        counts = counted_as(hit.directory, hit.path) if counts_only else None
        note_erased(hit.directory, file, erasure, hit.rows, hit.learnt and not counts_only, manifest.digest, counts)


def texts_of(hits: Iterable[Hit], selection: Selection) -> Iterator[str]:
    """What the erased rows of these files say, as JSON or plain: of interactions whose own rows retention removed."""
    ids = _Ids(selection)
    for hit in hits:
        with pq.ParquetFile(hit.directory / hit.path) as file:
            said = [name for name in SAID if name in file.schema_arrow.names]
            for batch in file.iter_batches(BATCH_ROWS, columns=[*ids.columns(file.schema_arrow), *said]) if said else ():
                theirs = batch.filter(ids.in_batch(batch))
                yield from (text for name in said for text in theirs[name].to_pylist() if text)


def shapes_of(hits: Iterable[Hit], selection: Selection) -> pa.Table:
    """The prompt shapes in these files, and whether erased rows or others have them: rows (prompt_shape, is_erased)."""
    ids = _Ids(selection)
    shapes: set[tuple[str | None, bool]] = set()
    for hit in hits:
        with pq.ParquetFile(hit.directory / hit.path) as file:
            if SHAPE not in file.schema_arrow.names:
                continue
            for batch in file.iter_batches(BATCH_ROWS, columns=[*ids.columns(file.schema_arrow), SHAPE]):
                shapes.update(zip(batch[SHAPE].to_pylist(), ids.in_batch(batch).to_pylist(), strict=True))
    return pa.Table.from_pylist([{SHAPE: shape, "is_erased": erased} for shape, erased in shapes], schema=_SHAPES)


def answer_keys(lake: LakeLayout, selection: Selection) -> dict[str, set[str]]:
    """By workload, the keys of teachers' answers to erased rows, and under "" all keys that any finished dataset names."""
    keys: dict[str, set[str]] = {"": set()}
    ids = _Ids(selection)
    for path in sorted(lake.root.glob("datasets/*/*/*/*.parquet")):
        with pq.ParquetFile(path) as file:
            if "request_sha256" not in file.schema_arrow.names:
                continue
            columns = [*ids.columns(file.schema_arrow), "request_sha256"]
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                keys[""].update(batch["request_sha256"].to_pylist())
                theirs = batch["request_sha256"].filter(ids.in_batch(batch)).to_pylist()
                keys.setdefault(path.parts[-4], set()).update(theirs)
    return keys


class _Ids:
    """The ids of an erasure, and the columns that may name them."""

    def __init__(self, selection: Selection):
        self._rows = pa.array(sorted({*selection.derived_ids, *selection.seed_ids}), pa.string())
        self._sessions = pa.array(sorted(selection.sessions), pa.string())

    def columns(self, schema: pa.Schema) -> list[str]:
        return [field.name for field in schema if _names_rows(field)]

    def count(self, path: Path) -> int:
        with pq.ParquetFile(path) as file:
            columns = self.columns(file.schema_arrow)
            if not columns:
                return 0
            return sum(pc.sum(self.in_batch(batch)).as_py() or 0 for batch in file.iter_batches(BATCH_ROWS, columns=columns))

    def in_batch(self, batch: pa.RecordBatch) -> pa.Array:
        """Whether each row of a batch is erased."""
        erased_rows = pa.array([False] * len(batch))
        for name in self.columns(batch.schema):
            sought = self._sessions if name == "session_id" else self._rows
            erased_rows = pc.or_(erased_rows, _holds(batch[name], sought, len(batch)))
        return erased_rows


def _names_rows(field: pa.Field) -> bool:
    kind = field.type
    if field.name.endswith("_id"):
        return pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return field.name.endswith("_ids") and is_list and pa.types.is_string(kind.value_type)


def _holds(column: pa.Array, sought: pa.Array, rows: int) -> pa.Array:
    if not pa.types.is_list(column.type) and not pa.types.is_large_list(column.type):
        return pc.fill_null(pc.is_in(column, value_set=sought.cast(column.type)), False)
    parents = pc.list_parent_indices(column)
    hits = parents.filter(pc.is_in(pc.list_flatten(column), value_set=sought))
    holds = [False] * rows
    for row in hits.to_pylist():
        holds[row] = True
    return pa.array(holds)


@dataclass(frozen=True)
class Answers:
    """Numbers of lines: of erased rows, and of rows that no dataset has."""

    theirs: int
    unattributed: int


def answers_to_erase(
    lake: LakeLayout, workloads: Collection[str], keys: Mapping[str, Collection[str]], sought: ErasedTexts
) -> dict[Path, Answers]:
    """Files with answers to erase. keys: of artefact_rows.answer_keys."""
    answers = {}
    for workload in sorted(workloads):
        path = lake.root / "answers" / f"{workload}.jsonl"
        if path.exists():
            with path.open("rb") as lines:
                whose = [_whose(line, keys.get(workload, ()), keys[""], sought) for line in lines]
            if any(whose):
                answers[path] = Answers(whose.count("theirs"), whose.count("unattributed"))
    return answers


def erase_answers(path: Path, keys: Mapping[str, Collection[str]], sought: ErasedTexts) -> None:
    """Replaces the file by its other lines."""
    with replacement(path) as temporary, path.open("rb") as lines, temporary.open("wb") as target:
        target.writelines(line for line in lines if not _whose(line, keys.get(path.stem, ()), keys[""], sought))


def _whose(line: bytes, theirs: Collection[str], named: Collection[str], sought: ErasedTexts) -> str:
    """`theirs`, `unattributed`, or "" for a line that stays."""
    try:
        known = json.loads(line)
        key, how = known["key"], known["answer"]["finish_reason"]
    except (ValueError, KeyError, TypeError):
        return "unattributed"  # what a killed process left
    if key in theirs or sought.in_bytes(line):
        return "theirs"
    return "unattributed" if key not in named and how != "judge" else ""
