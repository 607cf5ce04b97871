"""`millrace rebuild`: makes an artefact again from its manifest, in a side lake, and compares it file by file.

    rebuilt = rebuild(lake, "math-tutor/sft_dataset", None, Path("/tmp/again"))
    rebuilt.matches                     # whether every file has the bytes of the first time
    rebuilt.files                       # [ComparedFile("train.parquet", "same"), ...]

The recipe's stage is run on the inputs that the manifest names, with the same code as a run. Its settings come from the recipe.
If code, settings or an input differ from those of the manifest, it would be another version, and nothing is made: the error
says which of them differ.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import dagster as dg
import pyarrow as pa
from rich.console import Console
from rich.text import Text

from model_ops.jobs import Misuse, counted
from pipelines.contract import Recipe, load_recipe
from pipelines.graph import recipe_assets, recipe_parts
from pipelines.storage import last_run
from pipelines.terminal import print_rows
from resources.artefacts import ArtefactDraft, Registry, home_of, side_lake, step_of
from resources.catalog import find_artefact
from resources.digests import source_digest
from resources.lake import LakeLayout
from resources.launching import LocalLauncher
from resources.manifests import Input, Kind, Manifest, artefact_version, describe_files, is_record, read_manifest
from resources.records import visible
from resources.workshop import Workshop

Comparison = Literal["same", "differs", "missing", "new", "record of the run"]


class RebuildError(Misuse):
    """An artefact cannot be made again; the message says what differs from the first time."""


@dataclass(frozen=True)
class ComparedFile:
    """A file of the artefact: whether the second one has the bytes of the first."""

    path: str
    comparison: Comparison


@dataclass(frozen=True)
class Rebuilt:
    """An artefact that was made again."""

    first: Manifest
    directory: Path
    """Where the second one was made."""
    files: list[ComparedFile]

    @property
    def matches(self) -> bool:
        return all(file.comparison in ("same", "record of the run") for file in self.files)


def rebuild(lake: LakeLayout, artefact: str, recipe: Path | None, into: Path) -> Rebuilt:
    """Makes an artefact again below `into`, a new or empty folder. recipe: None for the one that was last run in the lake.

    Raises CatalogError for an unknown artefact, ManifestError if an input is gone, RebuildError if it would be another version,
    and the errors of the operation.
    """
    first = read_manifest(lake.root / find_artefact(lake, artefact))
    read = _recipe(lake, first, recipe)
    if into.exists() and any(into.iterdir()):
        raise RebuildError(f"{into} is not empty: give another folder with --into")
    if into.resolve().is_relative_to(lake.root.resolve()):
        raise RebuildError(f"{into} lies in the lake: give a folder elsewhere with --into")
    side = side_lake(lake, first, into)
    step = step_of(first.name.split("/", 1)[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dagster's warnings about parts of its API that may change
        _run(read, step, side, first)
    directory = home_of(side, first.kind, first.name) / first.version
    return Rebuilt(first, directory, _compared(first, directory))


def _recipe(lake: LakeLayout, manifest: Manifest, given: Path | None) -> Recipe:
    workload = manifest.name.split("/")[0]
    place = given or last_run(lake, workload)
    if place is None or not place.is_file():
        raise RebuildError(
            f"the recipe that made {manifest.name} is not where it was{f' ({place})' if place else ''}: give it "
            "with --recipe FILE"
        )
    recipe = load_recipe(place)
    if recipe.workload != workload:
        raise RebuildError(f"{place} is the recipe of {recipe.workload}: give the one of {workload} with --recipe FILE")
    return recipe


@dataclass(frozen=True)
class _OnlyThisVersion(Registry):
    """A registry that makes the version of a manifest, and no other."""

    first: Manifest | None = None
    refused: list[str] = field(default_factory=list)

    def draft(
        self, kind: Kind, name: str, op: str, sources: tuple[str, ...], config: dict[str, Any], inputs: list[Input]
    ) -> ArtefactDraft:
        first = self.first
        assert first is not None
        if artefact_version(op, source_digest(*sources), config, inputs) != first.version:
            self.refused.append(_difference(first, op, config, inputs))
            raise RebuildError(self.refused[-1])
        return super().draft(kind, name, op, sources, config, inputs)


def _run(recipe: Recipe, step: str, side: LakeLayout, first: Manifest) -> None:
    """Runs one stage of a recipe in a lake, in this process, without a history."""
    registry = _OnlyThisVersion(side, recipe.workload, recipe.digest, first=first)
    assets = recipe_assets(recipe, side.root)
    wanted = dg.AssetKey([recipe.workload, step])
    if not any(wanted in asset.keys for asset in assets if isinstance(asset, dg.AssetsDefinition)):
        raise RebuildError(f"the recipe makes no {step}: give the one that made {first.name} {first.version} with --recipe")
    with LocalLauncher() as launcher, dg.DagsterInstance.ephemeral() as instance:
        workshop = Workshop(registry, launcher, recipe.threads)
        parts = {name: value for name, (value, _) in recipe_parts(recipe).items()}
        dg.materialize(
            assets,
            selection=dg.AssetSelection.assets(wanted).without_checks(),
            instance=instance,
            resources={"workshop": workshop, **parts},
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )


def _difference(first: Manifest, op: str, config: Mapping[str, Any], inputs: list[Input]) -> str:
    """Why a version would be another one, as a sentence."""
    now = {(item.kind, item.name): item.digest for item in inputs}
    then = {(item.kind, item.name): item.digest for item in first.inputs}
    parts = [
        f"the {kind} {name} is another"
        for kind, name in sorted(now.keys() | then.keys())
        if now.get((kind, name)) != then.get((kind, name))
    ]
    here, there = _flat(config), _flat(first.config)
    parts += [
        f"the setting {key} is {here.get(key)!r} and was {there.get(key)!r}"
        for key in sorted(here.keys() | there.keys())
        if here.get(key) != there.get(key)
    ]
    if op != first.op:
        parts.append(f"the operation is {op} and was {first.op}")
    if not parts:
        parts.append(
            f"the code is another: it was made by revision {first.code.revision[:12]}"
            f"{', with uncommitted changes' if first.code.dirty else ''}"
        )
    return (
        f"{first.name}@{first.version} cannot be made again, because it would be another version: {'; '.join(parts)}. Use "
        "the code, recipe and files of that time"
    )


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _compared(first: Manifest, directory: Path) -> list[ComparedFile]:
    then = {file.path: file.sha256 for file in first.files}
    now = {file.path: file.sha256 for file in describe_files(directory)}

    def comparison(path: str) -> Comparison:
        if is_record(path, first.kind):
            return "record of the run"
        if path not in now:
            return "missing"
        if path not in then:
            return "new"
        return "same" if now[path] == then[path] else "differs"

    return [ComparedFile(path, comparison(path)) for path in sorted({*then, *now})]


_COLUMNS = pa.schema([("file", pa.string()), ("bytes_of_the_second", pa.string())])


def print_rebuilt(rebuilt: Rebuilt, format: str, console: Console, kept: bool) -> bool:
    """Prints the comparison file by file. kept: whether the second artefact stays. Returns whether the bytes match."""
    rows = [{"file": file.path, "bytes_of_the_second": file.comparison} for file in rebuilt.files]
    print_rows(pa.Table.from_pylist(rows, schema=_COLUMNS), format, console)
    if format == "table":
        name = f"{rebuilt.first.name}@{rebuilt.first.version}"
        compared = [file for file in rebuilt.files if file.comparison != "record of the run"]
        others = sum(file.comparison != "same" for file in compared)
        said = (
            f"{name} was made again: {counted(len(compared), 'file')}, every byte the same"
            if rebuilt.matches
            else f"{name} was made again, and {counted(others, 'file')} of {len(compared)} are not the same"
        )
        console.print(Text(visible(f"{said}. It is in {rebuilt.directory}" if kept else f"{said}.")), soft_wrap=True)
    return rebuilt.matches
