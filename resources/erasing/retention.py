"""Removes what a recipe keeps for a number of days only: rows of tables, versions of datasets and models, old table files.

Rows go by their day. With raw_days below curated_days, raw rows are emptied of what was said before the curated ones go: an
emptied interaction keeps ids, times, counts, and `emptied`, a hash of how it was served, so it is not stale and no copy of it
is read again. A row that was not cleaned yet keeps everything until it is. A version stays, whatever its age, if it is current,
a release, or behind a current artefact or a release."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow.compute as pc
from pydantic import Field, model_validator

from model_ops.jobs import Settings
from resources.artefacts import current_manifests, keep_seconds
from resources.catalog import publish
from resources.erasing.erasure import ErasurePlan, erase_sources, old_bytes, remove_old_files
from resources.erasing.journal import PendingErasure
from resources.lake import (
    PARTITIONS,
    SCHEMAS,
    LakeLayout,
    Tables,
    alone,
    attach_files,
    attach_slice,
    rows,
    run,
    stream,
    workbench,
)
from resources.manifests import Manifest, ManifestError, read_manifest
from resources.reading import ingest_lock, old_chats, remove_chats
from stores.in_use import InUse, taken

BY_DAY = ("interactions", "feedback", "cleaned_interactions", "judgements", "contamination")


class RetentionSettings(Settings):
    """For how many days a lake keeps what. A schedule removes what is older, every night while the Dagster daemon runs;
    `millrace retain` does it now."""

    rows_days: int | None = Field(
        None,
        ge=1,
        description="Days for which rows of the tables stay, raw and curated ones. Left out: for ever, or what "
        "raw_days and curated_days say",
    )
    raw_days: int | None = Field(
        None,
        ge=1,
        description="Days for which raw rows keep what was said: messages, tools, answers, token ids, comments of "
        "feedback and quarantined records. Ids, times and counts stay as long as the curated rows. Left out: rows_days",
    )
    curated_days: int | None = Field(
        None,
        ge=1,
        description="Days for which curated rows stay: cleaned ones with their feedback, decisions and judgements. "
        "At least raw_days, since a day with its raw rows would be cleaned again. Left out: rows_days",
    )
    versions_days: int | None = Field(
        None,
        ge=1,
        description="Days for which versions of datasets and models stay that are not current and that no release "
        "and no current artefact was made from. Left out: for ever",
    )
    counts_only: list[str] = Field(
        default_factory=list,
        description="Sources of which only counts stay once weights have learnt their rows: a run of "
        "the whole recipe ends by removing their texts from the lake. Left out: none",
    )
    old_files_days: float = Field(
        7.0,
        ge=0,
        description="Days for which replaced files of the tables stay, for time travel and for readers that have them open",
    )

    @model_validator(mode="after")
    def _raw_rows_go_first(self):
        if self.rows_days and self.raw_days:
            raise ValueError(
                f"rows_days is {self.rows_days}, one age for all rows, and raw_days is {self.raw_days}: keep "
                f"rows_days alone, or keep raw_days and write curated_days: {self.rows_days} instead of rows_days"
            )
        raw, curated = self.raw_days or self.rows_days, self.days_of_rows
        if curated is not None and raw is None:
            raise ValueError(
                f"curated_days is {curated} and raw rows stay for ever, from which curated rows would be made "
                f"again: add raw_days of at most {curated}"
            )
        if curated is not None and raw > curated:
            raise ValueError(
                f"raw rows stay for {raw} days and the curated ones made from them for {curated}, so they would "
                f"be made again: set raw_days to at most {curated}"
            )
        return self

    @property
    def days_of_rows(self) -> int | None:
        """Days after which rows go as a whole; None for never."""
        return self.curated_days or self.rows_days

    @property
    def days_of_texts(self) -> int | None:
        """Days after which raw rows are emptied; None where they go as a whole, or never."""
        raw = self.raw_days or self.rows_days
        return None if raw == self.days_of_rows else raw


@dataclass
class Old:
    """What is older than the settings keep."""

    rows: dict[str, int] = field(default_factory=dict)
    """Rows by table."""
    emptied: dict[str, int] = field(default_factory=dict)
    """Rows that lose what was said, by table."""
    versions: list[str] = field(default_factory=list)
    """`dataset tutor/sft_dataset 1a2b...`."""
    old_bytes: int = 0
    """Old bytes of all replaced files of tables (before: old enough or not; after: those that were removed)."""
    chats: int = 0
    """Rated answers of `millrace chat`, of which each is a file."""
    counts_only: dict[str, int] = field(default_factory=dict)
    """Rows of `counts_only` sources that hold text, by table; those of rows that no model has learnt stay."""
    unlearnt: bool = False
    """Whether they stay for that."""


def old_data(lake: LakeLayout, workload: str, settings: RetentionSettings, now: datetime | None = None) -> Old:
    """What `remove_old_data` would remove. Writes nothing."""
    now, tables = now or datetime.now(UTC), Tables(lake)
    old = Old(old_bytes=old_bytes(lake))
    if (first := _since(settings.days_of_rows, now)) is not None:
        old.rows = {name: count for name in BY_DAY if (count := sum(_old_days(tables, name, workload, first).values()))}
        if decisions := sum(_old_decisions(tables, workload, first).values()):
            old.rows["decisions"] = decisions
        if quarantined := _quarantine(tables, workload, first)[1]:
            old.rows["quarantine"] = quarantined
    if (emptied := _since(settings.days_of_texts, now)) is not None:
        old.emptied = rows_to_empty(tables, workload, emptied, first)
    old.versions = [_named(manifest) for manifest, _ in _old_versions(lake, workload, settings, now)]
    old.chats = len(old_chats(lake.root, workload, _since(settings.raw_days or settings.rows_days, now)))
    if settings.counts_only:
        old.counts_only = rows_with_text(lake, workload, settings.counts_only)
        old.unlearnt = bool(old.counts_only) and not is_learnt(lake, workload)
    return old


def remove_old_data(lake: LakeLayout, workload: str, settings: RetentionSettings, now: datetime | None = None) -> Old:
    """Removes it. What was removed before a kill stays removed; the next call removes the rest. Raises LakeInUse while a run
    is at work."""
    now, tables = now or datetime.now(UTC), Tables(lake)
    old = old_data(lake, workload, settings, now)
    if old.counts_only and not old.unlearnt:
        keep_counts_only(lake, workload, settings.counts_only)
    with alone(lake, "run millrace retain"), ingest_lock(lake):
        if (first := _since(settings.days_of_rows, now)) is not None:
            _remove_rows(tables, workload, first)
        if (emptied := _since(settings.days_of_texts, now)) is not None:
            empty_rows(tables, workload, emptied)
        remove_chats(lake.root, workload, _since(settings.raw_days or settings.rows_days, now))
        versions = list(_old_versions(lake, workload, settings, now))
        old.versions = [_named(manifest) for manifest, place in versions if _remove(lake, place)]
        if (keep_s := keep_seconds()) is not None:
            lake.mirror.remove_unfinished(keep_s)
        old.old_bytes = remove_old_files(lake, settings.old_files_days * 24)
        publish(lake)
    return old


def _since(days: int | None, now: datetime) -> date | None:
    """The first day that stays; None if every day does."""
    return None if days is None else now.date() - timedelta(days=days)


def _old_days(tables: Tables, name: str, workload: str, first: date) -> dict[date, int]:
    return {day: count for day, count in tables.rows_by_day(name, workload).items() if day < first}


def _old_decisions(tables: Tables, workload: str, first: date) -> dict[str, int]:
    with workbench() as connection:
        attach_slice(connection, tables, "decisions", workload)
        stages = rows(connection, "erasing/retention/old_decisions", workload=workload, first_day=first).to_pylist()
    return {row["stage"]: row["decisions"] for row in stages}


def _quarantine(tables: Tables, workload: str, first: date):
    """The quarantine that stays, and how many records of it are too old."""
    with workbench() as connection:
        for name in ("objects", "quarantine"):
            attach_slice(connection, tables, name, workload)
        records = rows(connection, "erasing/retention/quarantine_since", workload=workload, first_day=first)
    old = pc.sum(records["is_old"]).as_py() or 0
    return records.filter(pc.invert(records["is_old"])).drop_columns("is_old"), old


def _remove_rows(tables: Tables, workload: str, first: date) -> None:
    """The ids of interactions are kept first, in the table `retired`; interactions go last, so a kill loses no id."""
    if days := sorted(_old_days(tables, "interactions", workload, first)):
        with workbench() as connection:
            for name in ("interactions", "retired"):
                attach_slice(connection, tables, name, workload, days)
            tables.append("retired", stream(connection, "erasing/retention/retired"))
    for name in reversed(BY_DAY):
        if days := sorted(_old_days(tables, name, workload, first)):
            tables.replace(name, SCHEMAS[name].empty_table(), workload=workload, dt=days)
    for stage in _old_decisions(tables, workload, first):
        with workbench() as connection:
            attach_slice(connection, tables, "decisions", workload)
            left = stream(connection, "erasing/retention/decisions_since", workload=workload, stage=stage, first_day=first)
            tables.replace("decisions", left, workload=workload, stage=stage)
    left, old = _quarantine(tables, workload, first)
    if old:
        tables.replace("quarantine", left, workload=workload)


def _old_versions(
    lake: LakeLayout, workload: str, settings: RetentionSettings, now: datetime
) -> Iterator[tuple[Manifest, Path]]:
    """Datasets and models that are old enough and that nothing kept was made from."""
    if settings.versions_days is None:
        return
    needed = _needed(lake)
    for kind in ("models", "datasets"):
        for place in sorted((lake.root / kind / workload).glob("*/*/manifest.json")):
            with suppress(ManifestError):
                manifest = read_manifest(place.parent)
                if place.parent not in needed and manifest.created_at < now - timedelta(days=settings.versions_days):
                    yield manifest, place.parent


def _needed(lake: LakeLayout) -> set[Path]:
    """Directories of current artefacts and releases of every workload, and of all that they were made from."""
    waiting = [manifest for home in _workloads(lake) for manifest in current_manifests(lake, home).values()]
    for place in lake.root.glob("releases/*/*/manifest.json"):
        with suppress(ManifestError):
            waiting.append(read_manifest(place.parent))
    places: set[Path] = set()
    while waiting:
        manifest = waiting.pop()
        place = (
            lake.artefacts(manifest.kind)
            / (manifest.name.split("/")[0] if manifest.kind == "release" else manifest.name)
            / manifest.version
        )
        if place in places:
            continue
        places.add(place)
        for item in manifest.inputs:
            if item.kind in ("dataset", "model"):
                with suppress(ManifestError):
                    waiting.append(read_manifest(lake.artefacts(item.kind) / item.name / item.version))
    return places


def _workloads(lake: LakeLayout) -> set[str]:
    return {path.name for kind in ("dataset", "model", "release") for path in lake.artefacts(kind).glob("*") if path.is_dir()}


def _remove(lake: LakeLayout, place: Path) -> bool:
    """Removes a version's directory; False if a process works in it. The rename comes first: a killed removal leaves a folder
    that artefacts/leftovers.py removes, and never a version without some of its files."""
    aside = place.with_name(f".removing-{place.name}")
    with suppress(OSError, InUse):
        with taken(place):
            lake.mirror.remove(place)
            place.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
        return True
    return False


def _named(manifest: Manifest) -> str:
    return f"{manifest.kind} {manifest.name} {manifest.version}"


def rows_to_empty(tables: Tables, workload: str, first: date, since: date | None = None) -> dict[str, int]:
    """Number of rows of days before `first` that `empty_rows` would empty, by table; tables without any are left out. since:
    the first day whose rows do not go as a whole."""
    counts = {
        "interactions": sum(_days_to_empty(tables, workload, first, since).values()),
        "feedback": sum(_commented_days(tables, workload, first, since).values()),
        "quarantine": _emptied_rows_quarantine(tables, workload, first, since)[1],
    }
    return {name: count for name, count in counts.items() if count}


def empty_rows(tables: Tables, workload: str, first: date) -> None:
    """Empties them, one commit per day and table. A second call after a kill empties the rest."""
    for day in _days_to_empty(tables, workload, first):
        with workbench() as connection:
            for name in ("interactions", "cleaned_interactions"):
                attach_slice(connection, tables, name, workload, [day])
            run(connection, "erasing/retention/numbers_of")
            tables.replace("interactions", stream(connection, "erasing/retention/emptied"), workload=workload, dt=[day])
    for day in _commented_days(tables, workload, first):
        with workbench() as connection:
            attach_slice(connection, tables, "feedback", workload, [day])
            tables.replace("feedback", stream(connection, "erasing/retention/uncommented"), workload=workload, dt=[day])
    left, emptied = _emptied_rows_quarantine(tables, workload, first)
    if emptied:
        tables.replace("quarantine", left, workload=workload)


def _days_to_empty(tables: Tables, workload: str, first: date, since: date | None = None) -> dict[date, int]:
    days = _days(tables, "interactions", workload, first, since)
    with workbench() as connection:
        for name in ("interactions", "cleaned_interactions"):
            attach_slice(connection, tables, name, workload, days)
        return dict(run(connection, "erasing/retention/empty_days").fetchall())


def _commented_days(tables: Tables, workload: str, first: date, since: date | None = None) -> dict[date, int]:
    days = _days(tables, "feedback", workload, first, since)
    with workbench() as connection:
        attach_slice(connection, tables, "feedback", workload, days)
        return dict(run(connection, "erasing/retention/commented_days").fetchall())


def _days(tables: Tables, name: str, workload: str, first: date, since: date | None) -> list[date]:
    return [day for day in tables.rows_by_day(name, workload) if day < first and (since is None or day >= since)]


def _emptied_rows_quarantine(tables: Tables, workload: str, first: date, since: date | None = None):
    """The quarantine afterwards, and the number of records that lose their bytes."""
    with workbench() as connection:
        for name in ("objects", "quarantine"):
            attach_slice(connection, tables, name, workload)
        records = rows(connection, "erasing/retention/quarantine_emptied", workload=workload, first_day=first, since=since)
    return records.drop_columns("is_emptied"), pc.sum(records["is_emptied"]).as_py() or 0


_NOT_TRAINED = {"tiny_base", "import_base"}
"""Operations of models that learn no row of traffic, or are only where training begins."""


def is_learnt(lake: LakeLayout, workload: str) -> bool:
    """Whether a model was trained after the last rows were read."""
    newest = Tables(lake).written_at("interactions", workload)
    if newest is None:
        return False
    return any(
        manifest.kind == "model" and manifest.op not in _NOT_TRAINED and manifest.created_at > newest
        for manifest in current_manifests(lake, workload).values()
    )


def rows_with_text(lake: LakeLayout, workload: str, sources: Sequence[str]) -> dict[str, int]:
    """Rows of these sources in the tables that hold text, by table."""
    tables = Tables(lake)
    with workbench() as connection:
        for name in ("interactions", "feedback", "quarantine", "objects"):
            attach_files(connection, name, SCHEMAS[name], tables.files(name), PARTITIONS[name])
        counts = rows(connection, "erasing/retention/rows_with_text", workload=workload, sources=list(sources)).to_pylist()
    return {row["table_name"]: row["rows"] for row in counts if row["rows"]}


def keep_counts_only(lake: LakeLayout, workload: str, sources: Sequence[str]) -> ErasurePlan:
    """Removes them. What was removed before a kill stays removed; the next run completes it. Raises LakeInUse while a run is at
    work."""
    about = {"who": "retention", "reason": "counts_only", "workload": workload, "sources": list(sources)}
    return erase_sources(lake, PendingErasure(kind="source", hashes=[], vacuum=True, **about))
