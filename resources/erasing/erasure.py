"""Erases a user, a session or an interaction from a lake.

Order: journal, tombstones, unfinished work, answers, reports and Dagster's history, datasets, taint, tables (interactions
last), caches and catalog, old files; then the journal goes. Every step can be repeated, so a second try completes a killed one.
Sources are never touched: the report names the objects that a person has to clean."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from resources.artefacts import Cause, Taint, find_taints, keep_taint, remove_leftovers
from resources.catalog import rebuild
from resources.digests import all_digests, keep_slice_digests, rows_digest
from resources.endpoints import Actor, Endpoint, EndpointError, workloads_with_endpoints
from resources.erasing import journal
from resources.erasing.artefact_rows import (
    Answers,
    Hit,
    answer_keys,
    answers_to_erase,
    erase_answers,
    erase_rows,
    rows_in_artefacts,
    shapes_of,
    texts_of,
)
from resources.erasing.journal import ErasureTarget, PendingErasure
from resources.erasing.selection import ERASED_FROM, Selection, SourceObject, remove_rows, select_rows
from resources.erasing.sought import ErasedTexts, ReportFile, clean_page, is_searched, pages_showing
from resources.lake import SCHEMAS, LakeError, LakeLayout, Tables, alone, naming_damage
from resources.manifests import SAMPLED
from resources.reading import EVERYWHERE, ingest_lock, keep_key, refuse_other_key


@dataclass
class ErasurePlan:
    """What an erasure touches, or touched."""

    kind: str
    interactions: int = 0
    workloads: dict[str, int] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)
    """Rows by table."""
    files: list[Hit] = field(default_factory=list)
    answers: dict[Path, Answers] = field(default_factory=dict)
    pages: list[ReportFile] = field(default_factory=list)
    unfinished: int = 0
    tainted: list[Taint] = field(default_factory=list)
    """Tainted models and releases, also by earlier erasures."""
    endpoints: list[str] = field(default_factory=list)
    """Aliases that name a tainted release."""
    places: list[SourceObject] = field(default_factory=list)
    shared: tuple[int, int] = (0, 0)
    """Sessions of other users, and these users' rows in them."""
    later: list[str] = field(default_factory=list)
    """Interactions that stay but lose their cleaned rows, because these begin with erased turns."""
    old_bytes: int = 0
    erasure: str = ""
    vacuumed: bool = False
    is_known: bool = False
    """Whether the same erasure was requested before."""
    completed: int = 0
    """Interrupted erasures that were completed first."""
    near: list[str] = field(default_factory=list)
    """Which other ids may mean the same."""
    unmapped: list[str] = field(default_factory=list)
    """Where logs name the user, or users, under keys that nothing reads."""

    @property
    def is_empty(self) -> bool:
        """A rated chat counts: until a run reads it, the lake has it nowhere else."""
        rows = self.interactions or any(self.tables.values())
        return not (rows or self.files or self.answers or any(page.rated for page in self.pages))


def plan_erasure(lake: LakeLayout, asked: ErasureTarget) -> ErasurePlan:
    """What an erasure would touch. Writes nothing. Raises LakeError for a lake of another key."""
    tables = Tables(lake)
    _fetch_rows(lake)
    refuse_other_key(tables)
    with naming_damage(lambda: _parquet_of_datasets(lake)), select_rows(tables, asked) as selection:
        plan = _planned(lake, selection, asked)
    plan.is_known = {(asked.kind, sha256) for sha256 in asked.hashes} <= _known(tables)
    return plan


def forget(lake: LakeLayout, asked: ErasureTarget, by: Actor, vacuum: bool = False) -> ErasurePlan:
    """Erases, and completes what earlier erasures left. Raises LakeInUse while a run is at work."""
    refuse_other_key(Tables(lake))
    request = PendingErasure(kind=asked.kind, hashes=list(asked.hashes), who=by.name, reason=by.reason, vacuum=vacuum)
    with _held(lake):
        keep_key(Tables(lake))
        earlier = journal.unfinished(lake)
        for unfinished in earlier:
            _erase(lake, unfinished)
        journal.write(lake, request)
        plan = _erase(lake, request)
        plan.completed = len(earlier)
        return plan


def erase_sources(lake: LakeLayout, request: PendingErasure) -> ErasurePlan:
    """Erases whole sources, of which only counts stay. Raises LakeInUse while a run is at work."""
    with _held(lake):
        for unfinished in journal.unfinished(lake):
            _erase(lake, unfinished)
        request = request.model_copy(update={"digests": all_digests(Tables(lake), request.workload)})
        journal.write(lake, request)
        return _erase(lake, request)


def vacuum_only(lake: LakeLayout) -> None:
    """Removes old files of the tables after an erasure that kept them. Raises LakeInUse while a run is at work."""
    with _held(lake):
        remove_old_files(lake)


def complete_unfinished(lake: LakeLayout) -> int:
    """Completes erasures that were killed; returns their number. Raises LakeInUse while a run is at work, LakeError for
    another key."""
    refuse_other_key(Tables(lake))
    if not journal.unfinished(lake):
        return 0
    with _held(lake):
        waiting = journal.unfinished(lake)
        for request in waiting:
            _erase(lake, request)
        return len(waiting)


@contextmanager
def _held(lake: LakeLayout) -> Iterator[None]:
    with alone(lake, "run millrace forget"), ingest_lock(lake):
        yield


def _planned(lake: LakeLayout, selection: Selection, asked: ErasureTarget) -> ErasurePlan:
    files = list(rows_in_artefacts(lake, selection))
    sought = _sought(selection, asked, files)
    answers = answers_to_erase(lake, selection.workloads, answer_keys(lake, selection), sought)
    now = datetime.now(UTC)
    rows: dict[str, int] = {}
    for hit in files:
        rows[hit.node] = rows.get(hit.node, 0) + (hit.rows if hit.learnt else 0)
    causes = [Cause(dataset=node, rows=count, at=now) for node, count in rows.items() if count]
    taints = list(find_taints(lake, causes).values())
    return ErasurePlan(
        kind=asked.kind,
        interactions=selection.interactions,
        workloads=selection.workloads,
        tables={name: changed for name in ERASED_FROM if (changed := sum(selection.changes(name).values()))},
        files=files,
        answers=answers,
        pages=list(pages_showing(lake, sought)),
        tainted=taints,
        endpoints=_serving(lake, taints),
        places=selection.places,
        shared=selection.shared,
        later=sorted(selection.derived_ids - selection.ids),
        old_bytes=old_bytes(lake),
    )


def _erase(lake: LakeLayout, request: PendingErasure) -> ErasurePlan:
    """Carries an erasure out, from its journal on."""
    tables = Tables(lake)
    _fetch_rows(lake)
    with naming_damage(lambda: _parquet_of_datasets(lake)), select_rows(tables, request.asked) as selection:
        counts_only = request.kind == "source"
        if counts_only:
            tables.append("retired", selection.ids_to_retire())
        else:
            _bury(tables, request, selection)
        for manifest in (*lake.root.glob("datasets/*/*/*/manifest.json"), *lake.root.glob("releases/*/*/manifest.json")):
            for path in filter(Path.is_file, manifest.parent.rglob(".*")):  # what a killed erasure left
                path.unlink()
        files = list(rows_in_artefacts(lake, selection))
        sought = _sought(selection, request.asked, files)
        keys = answer_keys(lake, selection)
        plan = ErasurePlan(
            kind=request.kind,
            interactions=selection.interactions,
            workloads=selection.workloads,
            places=selection.places,
            shared=selection.shared,
            later=sorted(selection.derived_ids - selection.ids),
            erasure=request.erasure,
            vacuumed=request.vacuum,
        )
        for workload in selection.workloads:
            plan.unfinished += len(remove_leftovers(lake, workload, 0.0, shortest_s=0.0))
        plan.answers = answers_to_erase(lake, selection.workloads, keys, sought)
        for path in plan.answers:
            erase_answers(path, keys, sought)
        plan.pages = list(pages_showing(lake, sought))
        for page in plan.pages:
            if not page.model:
                clean_page(page, sought, request.erasure, counts_only)
        for hit in files:  # after the pages, which are found by the texts in these rows too
            erase_rows(hit, selection, request.erasure, counts_only)
            plan.files.append(hit)
        plan.tainted = keep_taint(lake)
        lake.mirror.push()  # before the rows go that say what to erase: another machine may have to complete it
        plan.endpoints = _serving(lake, plan.tainted)
        for name in ERASED_FROM:
            if counts_only and name == "retired":
                continue
            if changed := remove_rows(tables, selection, name):
                plan.tables[name] = changed
    if request.digests:
        keep_slice_digests(lake, request.workload, request.digests, all_digests(tables, request.workload, rows_digest))
    shutil.rmtree(lake.root / ".remembered", ignore_errors=True)
    lake.mirror.push()  # before the journal goes: a killed erasure is completed on any machine
    if request.vacuum:
        remove_old_files(lake)
    plan.old_bytes = old_bytes(lake)
    lake.catalog.unlink(missing_ok=True)
    rebuild(lake)
    lake.mirror.publish_catalog(lake.catalog)
    journal.done(lake, request)
    return plan


def _parquet_of_datasets(lake: LakeLayout) -> Iterator[Path]:
    return lake.root.glob("datasets/*/*/*/**/*.parquet")


def _fetch_rows(lake: LakeLayout) -> None:
    """Datasets and paid answers are read whole; of models, releases and endpoints every file that may show text."""
    for folder in ("datasets", "answers"):
        lake.mirror.fetch(lake.root / folder)
    for folder in ("models", "releases", "endpoints"):
        lake.mirror.fetch(lake.root / folder, lambda path, size: path.name in SAMPLED or is_searched(path, size))


def _bury(tables: Tables, request: PendingErasure, selection: Selection) -> None:
    """Writes the tombstones: what was asked, and the rows that follow from it. A second call adds those that are missing."""
    wanted = {(request.kind, sha256) for sha256 in request.hashes}
    wanted |= {(row["kind"], row["sha256"]) for row in selection.further_tombstones.to_pylist()}
    wanted -= _known(tables)
    about = {"workload": EVERYWHERE, "ts": request.at}
    about |= {name: getattr(request, name) for name in ("erasure", "key_check", "reason", "who")}
    tombstones = [{**about, "kind": kind, "sha256": sha256} for kind, sha256 in sorted(wanted)]
    tables.append("erasures", pa.Table.from_pylist(tombstones, schema=SCHEMAS["erasures"]))


def _known(tables: Tables) -> set[tuple[str, str]]:
    """Kind and hash of the tombstones that count in every workload."""
    table = tables.open("erasures") if tables.files("erasures") else None
    tombstones = table.to_pyarrow_table(columns=["workload", "kind", "sha256"]).to_pylist() if table is not None else []
    return {(row["kind"], row["sha256"]) for row in tombstones if row["workload"] == EVERYWHERE}


def _sought(selection: Selection, asked: ErasureTarget, files: list[Hit]) -> ErasedTexts:
    """What reports and logs may show: texts, and ids and names of prompt shapes that only erased rows have."""
    texts = texts_of(files, selection) if selection.has_retired else ()
    hashes = asked.hashes if asked.kind == "user" else ()
    ids = {*selection.ids, *selection.sessions, *selection.other_ids, *hashes}
    return ErasedTexts.of(
        chain(selection.texts(), texts), ids, selection.other_texts(), selection.shapes(shapes_of(files, selection))
    )


def _serving(lake: LakeLayout, taints: list[Taint]) -> list[str]:
    """`tutor: champion 1a2b...`, for each alias that names a tainted release."""
    releases = {(taint.directory.parent.name, taint.version) for taint in taints if taint.kind == "release"}
    named = []
    for workload in workloads_with_endpoints(lake) if releases else ():
        try:
            aliases = Endpoint(lake, workload).read()
        except EndpointError:
            continue
        named += [
            f"{workload}: {alias} {version}"
            for alias in ("champion", "candidate", "previous")
            if (version := getattr(aliases, alias)) and (workload, version) in releases
        ]
    return named


LOG = "_delta_log"


def old_bytes(lake: LakeLayout) -> int:
    """Bytes of Parquet files that the newest versions of the tables do not name."""
    total = 0
    for place, table in _tables(lake):
        named = {unquote(uri).rsplit("/", 1)[-1] for uri in table.file_uris()}
        total += sum(
            file.bytes
            for path, file in lake.mirror.table_files(place).items()
            if _is_data(path) and PurePosixPath(path).name not in named
        )
    return total


def remove_old_files(lake: LakeLayout, keep_hours: float = 0) -> int:
    """Removes files that were replaced more than keep_hours ago; returns their bytes. The log keeps its newest commit, and a
    checkpoint that stands for the earlier ones. Raises LakeError if a store in the network refuses."""
    before = time.time() - keep_hours * 3_600
    freed = 0
    for place, table in _tables(lake):
        lake.mirror.may_write()
        files = lake.mirror.table_files(place)
        try:
            table.vacuum(retention_hours=int(keep_hours), enforce_retention_duration=False, dry_run=False, full=True)
        except (DeltaError, OSError) as error:
            raise LakeError(
                f"replaced files of {lake.place}/tables/{place.name} cannot be removed: check that the keys in use "
                "may delete there, then try again"
            ) from error
        left = lake.mirror.table_files(place)
        freed += sum(file.bytes for path, file in files.items() if _is_data(path) and path not in left)
        table.update_incremental()
        table.create_checkpoint()
        freed += _shorten_log(lake, place, table.version(), before)
    lake.mirror.pull()
    return freed


def _tables(lake: LakeLayout) -> Iterator[tuple[Path, DeltaTable]]:
    """Every table's folder in the lake, and the table where it is committed to."""
    for place in sorted((lake.root / "tables").glob("*")):
        with suppress(TableNotFoundError, FileNotFoundError):
            yield place, lake.mirror.table(place)


def _is_data(path: str) -> bool:
    return path.endswith(".parquet") and not path.startswith(f"{LOG}/")


def _shorten_log(lake: LakeLayout, place: Path, version: int, before: float) -> int:
    """Removes commits and checkpoints older than a version, which has a checkpoint of its own."""
    files = lake.mirror.table_files(place)
    if f"{LOG}/{version:020}.checkpoint.parquet" not in files:
        return 0
    old = {
        path: file.bytes
        for path, file in files.items()
        if path.startswith(f"{LOG}/")
        and (number := PurePosixPath(path).name.split(".")[0]).isdigit()
        and int(number) < version
        and file.modified.timestamp() <= before
    }
    lake.mirror.remove_table_files(place, old)
    return sum(old.values())
