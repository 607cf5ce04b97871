"""The version that each stage of a recipe would have if it were made now. Each asset runs up to the point where it would build,
with a workshop that only computes the version, so it comes from the same code as in a run. Stages whose inputs do not exist yet
are left out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_ops.jobs import Job
from pipelines.contract import Recipe
from pipelines.graph import asset_of, recipe_parts
from resources.artefacts import Registry, current_manifests
from resources.digests import source_digest
from resources.lake import LakeLayout
from resources.manifests import Input, Kind, Manifest, ManifestError, artefact_version, external_input
from resources.sources import SourceError
from resources.stages import artefact_stages, named_dataset_stage
from resources.workshop import Workshop

HASHED_BYTES = 200_000_000
"""Most bytes of a changed external model that are read to compare it."""

SliceDigest = Callable[[str, bool], str | None]
"""(table, as_served) -> the current digest of the workload's rows; None if that would take too long."""


@dataclass(frozen=True)
class PlannedVersion:
    """The artefact that a run would make now."""

    version: str
    op: str = ""
    config: dict[str, Any] | None = None
    inputs: tuple[Input, ...] = ()
    unknown: str = ""
    """An input that was not compared, and why; then `version` is empty."""

    def differs_from(self, manifest: Manifest) -> str:
        """How a run's result would differ from `manifest`, apart from inputs that are artefacts or tables; empty if it would
        not."""
        if self.unknown or self.version == manifest.version:
            return ""
        then, now = manifest.config, self.config or {}
        changed = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
        if changed:
            return "settings changed: " + ", ".join(_change(name, then, now) for name in changed[:4])
        outside = {item.name: item.digest for item in self.inputs if item.kind == "external"}
        before = {item.name: item.digest for item in manifest.inputs if item.kind == "external"}
        if outside != before:
            names = sorted(name for name in {*outside, *before} if outside.get(name) != before.get(name))
            return f"other files: {', '.join(names)}"
        same_inputs = sorted(item.digest for item in self.inputs) == sorted(item.digest for item in manifest.inputs)
        return "code changed" if same_inputs else ""


def _change(name: str, then: dict[str, Any], now: dict[str, Any]) -> str:
    if name not in then or name not in now:
        return f"{name} {'is new' if name in now else 'is gone'}"
    shown = f"{name} {then[name]}, now {now[name]}"
    return shown if len(shown) <= 60 else name


def planned_versions(recipe: Recipe, lake: LakeLayout, slice_digest: SliceDigest) -> dict[str, PlannedVersion]:
    """Planned versions by artefact, for enabled stages whose inputs exist."""
    given = {name: value for name, (value, _) in recipe_parts(recipe).items()}
    shop = _Plan(Registry(lake, recipe.workload), _NoLauncher(), recipe.threads)
    object.__setattr__(shop, "slice_digest", slice_digest)
    planned = {}
    for stage in (*artefact_stages(), *map(named_dataset_stage, recipe.datasets.named)):
        if stage.name in recipe.disabled:
            continue
        work = asset_of(stage).op.compute_fn.decorated_fn
        words = inspect.signature(work).parameters
        values = {**given, "workshop": shop, "context": None}
        if "config" in words:
            values["config"] = words["config"].annotation()
        try:
            work(**{word: values[word] for word in words})
        except _Named as named:
            planned[stage.artefact_name] = named.planned
        except (ManifestError, SourceError, OSError):
            continue
    return planned


class _Named(Exception):
    """Leaves an asset before it builds, with what it would build."""

    def __init__(self, planned: PlannedVersion):
        super().__init__(planned.version)
        self.planned = planned


class _NoLauncher:
    """Runs nothing: an asset is left before it starts a job."""

    def run(self, job: Job, context: Any = None) -> dict[str, Any]:
        raise NotImplementedError(f"{job.operation} would be run by a plan")

    def close(self) -> None:
        """Nothing waits."""


class _Plan(Workshop):
    slice_digest: SliceDigest

    def current(self, kind: Kind, name: str) -> Manifest:
        """The current manifest, even if outdated; its own stage reports that."""
        return self.registry.current(kind, name)

    def build(
        self,
        kind: Kind,
        name: str,
        op: str,
        sources: tuple[str, ...],
        config: dict[str, Any],
        inputs: list[Input],
        work: Callable[[Path], dict[str, Any]],
    ) -> Manifest:
        raise _Named(PlannedVersion(artefact_version(op, source_digest(*sources), config, inputs), op, config, tuple(inputs)))

    def slice(self, table: str, as_served: bool = False) -> Input:
        digest = self.slice_digest(table, as_served)
        if digest is None:
            raise _Named(PlannedVersion("", unknown=f"{table} is too large to be compared here"))
        return Input(kind="table", name=table, digest=digest)

    def hub_commit(self, model: str, revision: str | None) -> str | None:
        """Nothing is asked: of a base model that was imported, its commit is known."""
        return None

    def external(self, place: str) -> Input:
        """The recorded input if no file has changed since; else read again, if it is small."""
        directory = Path(place)
        if not directory.is_dir():
            return external_input(place)
        stats = [path.stat() for path in directory.rglob("*") if path.is_file()]
        newest = max((stat.st_mtime for stat in stats), default=0.0)
        for manifest in current_manifests(self.lake, self.workload).values():
            for item in manifest.inputs:
                if item.kind == "external" and item.name == place and datetime.fromtimestamp(newest, UTC) < manifest.created_at:
                    return item
        if sum(stat.st_size for stat in stats) > HASHED_BYTES:
            raise _Named(PlannedVersion("", unknown=f"files of {place} changed since, and are too large to be compared here"))
        return external_input(place)
