"""Compares two versions of a dataset: rows added, removed, moved between splits, changed, or repeated another number of times.

A version is `current`, `previous` (the version made last before the other one), or the beginning of its 12 hex digits."""

from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.jobs import Misuse
from resources.artefacts import Registry
from resources.lake import LakeLayout, Tables, attach_slice, naming_damage, rows, run, sql_literal, sql_text, workbench
from resources.manifests import Manifest

SPLITS = ("train", "validation", "test")
CURRENT, PREVIOUS = "current", "previous"


class DiffError(Misuse):
    """The versions cannot be compared; the message says which there are."""


@dataclass(frozen=True)
class DatasetDiff:
    """The two versions, the numbers of changed rows, and the rows themselves where they were asked for."""

    name: str
    old: str
    new: str
    changes: pa.Table
    each_row: pa.Table | None = None

    @property
    def total(self) -> int:
        return sum(self.changes["rows"].to_pylist())


def compare_versions(
    lake: LakeLayout, name: str, old: str | None = None, new: str | None = None, each_row: bool = False
) -> DatasetDiff:
    """Compares a dataset (workload/name; a bare name if one workload has it): by default the current version and the previous.
    Raises DiffError for an unknown dataset or version, and for a dataset without splits."""
    registry, own = _registry_of(lake, name)
    versions = registry.versions("dataset", own)
    after = _chosen(registry, own, versions, new or CURRENT, None)
    before = _chosen(registry, own, versions, old or PREVIOUS, after)
    if new == PREVIOUS:  # of the version that it is compared with
        before = _chosen(registry, own, versions, old or CURRENT, None)
        after = _chosen(registry, own, versions, PREVIOUS, before)
    files = [path for version in (before, after) for path in _files(registry, version)]
    with naming_damage(lambda: files), workbench() as connection:
        _read(connection, registry, before, "old_rows")
        _read(connection, registry, after, "new_rows")
        attach_slice(connection, Tables(lake), "decisions", registry.workload)
        run(connection, "composing/diff/row_changes", version=after.version)
        return DatasetDiff(
            f"{registry.workload}/{own}",
            before.version,
            after.version,
            rows(connection, "composing/diff/changes"),
            rows(connection, "composing/diff/each_row") if each_row else None,
        )


def version_named(lake: LakeLayout, name: str, word: str) -> tuple[str, str]:
    """Name and version of a dataset; word: current, previous (before the current one) or a version's first digits."""
    registry, own = _registry_of(lake, name)
    other = registry.current("dataset", own) if word == PREVIOUS else None
    return f"{registry.workload}/{own}", _chosen(registry, own, registry.versions("dataset", own), word, other).version


def _registry_of(lake: LakeLayout, name: str) -> tuple[Registry, str]:
    home = lake.artefacts("dataset")
    there = sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in home.glob("*/*/current.json"))
    meant = [each for each in there if name in (each, each.partition("/")[2])]
    if len(meant) != 1:
        problem = f"{name} is in several workloads" if meant else f"there is no dataset {name}"
        raise DiffError(f"{problem}; give one of {', '.join(meant or there) or 'them after a run has made it'}")
    workload, _, own = meant[0].partition("/")
    return Registry(lake, workload), own


def _chosen(registry: Registry, name: str, versions: list[Manifest], word: str, other: Manifest | None) -> Manifest:
    """The version that a word means; other: the version it is compared with."""
    if word == CURRENT:
        return registry.current("dataset", name)
    if word == PREVIOUS:
        others = [each for each in versions if other is None or each.version != other.version]
        earlier = [each for each in others if other is None or each.created_at <= other.created_at]
        if not others:
            raise DiffError(
                f"{registry.workload}/{name} has one version, {versions[-1].version}: there is nothing to compare "
                "it with until a run makes another"
            )
        return (earlier or others)[-1]
    matches = [each for each in versions if each.version.startswith(word)]
    if len(matches) != 1 or len(word) < 4:
        there = ", ".join(f"{each.version} ({each.created_at:%Y-%m-%d %H:%M})" for each in versions[-8:])
        raise DiffError(
            f"{word} is no version of {registry.workload}/{name}; give current, previous, or at least 4 digits of "
            f"one of {there}"
        )
    return matches[0]


def _files(registry: Registry, manifest: Manifest) -> list[Path]:
    return [path for split in SPLITS if (path := registry.directory(manifest) / f"{split}.parquet").exists()]


def _read(connection: duckdb.DuckDBPyConnection, registry: Registry, manifest: Manifest, view: str) -> None:
    """Creates `view`, the rows of a version."""
    files = _files(registry, manifest)
    held = set(pq.read_schema(files[0]).names) if files else set()
    if not {"row_id", "source"} <= held:
        raise DiffError(f"{manifest.name} has no rows in splits; sft_dataset and teacher_answers do")
    reason = "min(reason)" if "reason" in held else "null::varchar"
    content, named = (
        "content_sha256" if "content_sha256" in held else "null",
        ", ".join(sql_literal(str(path)) for path in files),
    )
    query = sql_text("composing/diff/version_rows")
    connection.execute(query.format(view=view, files=named, reason=reason, content=content))


def diff_summary(diff: DatasetDiff) -> dict[str, int]:
    """Numbers of rows by change."""
    counts: dict[str, int] = {}
    for change in diff.changes.to_pylist():
        counts[change["change"]] = counts.get(change["change"], 0) + change["rows"]
    return counts
