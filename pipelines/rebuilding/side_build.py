"""`millrace rebuild`, for an auditor: makes an artefact again from its manifest, and compares it file by file. The stage runs
as in a run, on the inputs that the manifest names, in a side lake: only files are linked there, never a folder, so nothing
changes the lake. Where it would be another version, nothing is made: the error says what differs."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import dagster as dg
import pyarrow as pa
from deltalake import DeltaTable
from rich.console import Console
from rich.text import Text

from model_ops.files import write_json
from model_ops.jobs import Misuse, counted
from pipelines.contract import Recipe, load_recipe
from pipelines.graph import recipe_assets, recipe_parts
from pipelines.storage import last_run
from pipelines.terminal import print_rows
from resources.artefacts import ArtefactDraft, Registry, home_of, step_of
from resources.catalog import find_artefact
from resources.digests import source_digest
from resources.lake import LakeLayout
from resources.launching import LocalLauncher
from resources.manifests import Input, Kind, Manifest, ManifestError, artefact_version, describe_files, is_record, read_manifest
from resources.records import visible
from resources.workshop import Workshop


def side_lake(lake: LakeLayout, manifest: Manifest, place: Path) -> LakeLayout:
    """Makes the side lake at `place`, a new or empty folder. Raises ManifestError if an artefact behind the manifest is gone,
    or if a table cannot be read as it was."""
    side = LakeLayout.open(place)
    shutil.copyfile(lake.root / "lake.json", side.root / "lake.json")  # with the key that ids are hashed with
    for ancestor in _ancestors(lake, manifest):
        source, home = (home_of(each, ancestor.kind, ancestor.name) for each in (lake, side))
        lake.mirror.fetch(source / ancestor.version)
        _link_files(source / ancestor.version, home / ancestor.version)
        write_json(home / "current.json", {"version": ancestor.version})
    for log in sorted((lake.root / "tables").glob("*/_delta_log")):
        lake.mirror.fetch(log.parent)
        _link_table(log.parent, side.table(log.parent.name), manifest)
    answers = lake.root / "answers" / f"{manifest.name.split('/')[0]}.jsonl"
    if answers.is_file():  # a teacher's answers are not asked for twice
        (side.root / "answers").mkdir()
        shutil.copyfile(answers, side.root / "answers" / answers.name)
    return side


def _ancestors(lake: LakeLayout, manifest: Manifest) -> list[Manifest]:
    """Every artefact behind a manifest, those behind a pinned input only first: of two versions, the last becomes current."""
    ancestors: dict[tuple[str, str, str], Manifest] = {}
    waiting = [(item.pinned, item) for item in manifest.inputs]
    while waiting:
        waiting.sort(key=lambda entry: entry[0])  # stable: what is behind a pin comes last
        pinned, item = waiting.pop(0)
        key = (item.kind, item.name, item.version)
        if item.kind == "table" or item.kind == "external" or key in ancestors:
            continue
        try:
            ancestors[key] = read_manifest(home_of(lake, item.kind, item.name) / item.version)
        except ManifestError as error:
            raise ManifestError(
                f"{manifest.name}@{manifest.version} was made from {item.name}@{item.version}, which is not in "
                "the lake any more: it cannot be made again"
            ) from error
        waiting += [(pinned or each.pinned, each) for each in ancestors[key].inputs]
    return list(reversed(ancestors.values()))


def _link_files(directory: Path, to: Path) -> None:
    for folder, _, names in os.walk(directory):
        inside = to / Path(folder).relative_to(directory)
        inside.mkdir(parents=True, exist_ok=True)
        for name in names:
            (inside / name).symlink_to((Path(folder) / name).resolve())


def _link_table(table: Path, to: Path, manifest: Manifest) -> None:
    """Links a Delta table as it was when an artefact was finished."""
    at = round(manifest.created_at.timestamp() * 1000)
    commits = [commit["version"] for commit in DeltaTable(str(table)).history() if commit.get("timestamp", 0) <= at]
    if not commits:
        return  # it did not exist yet
    (to / "_delta_log").mkdir(parents=True)
    for entry in (table / "_delta_log").iterdir():
        number = entry.name.partition(".")[0]
        if number.isdigit() and int(number) <= max(commits):
            shutil.copyfile(entry, to / "_delta_log" / entry.name)
    as_it_was = DeltaTable(str(to))
    for path in as_it_was.file_uris():
        inside = Path(path).relative_to(as_it_was.table_uri.removeprefix("file://").rstrip("/"))
        if not (table / inside).is_file():
            raise ManifestError(
                f"a file of the table {table.name} as it was on {manifest.created_at:%Y-%m-%d} was vacuumed: "
                f"{manifest.name}@{manifest.version} cannot be made again"
            )
        (to / inside).parent.mkdir(parents=True, exist_ok=True)
        (to / inside).symlink_to((table / inside).resolve())


RECORD = "record of the run"
Comparison = Literal["same", "differs", "missing", "new", "record of the run"]
_COLUMNS = pa.schema([("file", pa.string()), ("bytes_of_the_second", pa.string())])


class RebuildError(Misuse):
    """An artefact cannot be made again; the message says what differs from the first time."""


@dataclass(frozen=True)
class Rebuilt:
    """An artefact that was made again."""

    first: Manifest
    directory: Path
    """Where the second one was made."""
    files: Mapping[str, Comparison]
    """Whether each file of the second one has the bytes of the first."""

    @property
    def matches(self) -> bool:
        return {*self.files.values()} <= {"same", RECORD}


def rebuild(lake: LakeLayout, artefact: str, recipe: Path | None, into: Path) -> Rebuilt:
    """Makes an artefact again below `into`, a new or empty folder. recipe: None for the one that was last run in the lake.
    Raises CatalogError for an unknown artefact, ManifestError if an input is gone, RebuildError if it would be another version,
    and the errors of the operation."""
    first = read_manifest(lake.root / find_artefact(lake, artefact))
    read = _recipe(lake, first, recipe)
    if into.exists() and any(into.iterdir()):
        raise RebuildError(f"{into} is not empty: give another folder with --into")
    if into.resolve().is_relative_to(lake.root.resolve()):
        raise RebuildError(f"{into} lies in the lake: give a folder elsewhere with --into")
    side = side_lake(lake, first, into)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dagster's warnings about parts of its API that may change
        _run(read, step_of(first.name.split("/", 1)[1]), side, first)
    directory = home_of(side, first.kind, first.name) / first.version
    return Rebuilt(first, directory, _compared(first, directory))


def _recipe(lake: LakeLayout, manifest: Manifest, given: Path | None) -> Recipe:
    workload = manifest.name.split("/")[0]
    place = given or last_run(lake, workload)
    if place is None or not place.is_file():
        was = f" ({place})" if place else ""
        raise RebuildError(f"the recipe that made {manifest.name} is not where it was{was}: give it with --recipe FILE")
    recipe = load_recipe(place)
    if recipe.workload != workload:
        raise RebuildError(f"{place} is the recipe of {recipe.workload}: give the one of {workload} with --recipe FILE")
    return recipe


def _run(recipe: Recipe, step: str, side: LakeLayout, first: Manifest) -> None:
    """Runs one stage of a recipe in a lake, in this process, without a history."""

    class OnlyFirst(Registry):
        """Makes the version of the manifest, and no other."""

        def draft(
            self, kind: Kind, name: str, op: str, sources: tuple[str, ...], config: dict[str, Any], inputs: list[Input]
        ) -> ArtefactDraft:
            if artefact_version(op, source_digest(*sources), config, inputs) != first.version:
                raise RebuildError(_difference(first, op, config, inputs))
            return super().draft(kind, name, op, sources, config, inputs)

    assets = recipe_assets(recipe, side.root)
    wanted = dg.AssetKey([recipe.workload, step])
    if not any(wanted in asset.keys for asset in assets if isinstance(asset, dg.AssetsDefinition)):
        raise RebuildError(f"the recipe makes no {step}: give the one that made {first.name} {first.version} with --recipe")
    with LocalLauncher() as launcher, dg.DagsterInstance.ephemeral() as instance:
        workshop = Workshop(OnlyFirst(side, recipe.workload, recipe.digest), launcher, recipe.threads)
        dg.materialize(
            assets,
            selection=dg.AssetSelection.assets(wanted).without_checks(),
            instance=instance,
            resources={"workshop": workshop, **{name: value for name, (value, _) in recipe_parts(recipe).items()}},
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )


def _difference(first: Manifest, op: str, config: Mapping[str, Any], inputs: list[Input]) -> str:
    now, then = ({(item.kind, item.name): item.digest for item in items} for items in (inputs, first.inputs))
    here, there = _flat(config), _flat(first.config)
    parts = [f"the {kind} {name} is another" for kind, name in _unequal(now, then)]
    parts += [f"the setting {key} is {here.get(key)!r} and was {there.get(key)!r}" for key in _unequal(here, there)]
    if op != first.op:
        parts.append(f"the operation is {op} and was {first.op}")
    if not parts:
        changed = ", with uncommitted changes" if first.code.dirty else ""
        parts.append(f"the code is another: it was made by revision {first.code.revision[:12]}{changed}")
    return (
        f"{first.name}@{first.version} cannot be made again, because it would be another version: {'; '.join(parts)}. Use "
        "the code, recipe and files of that time"
    )


def _unequal(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> list[Any]:
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _compared(first: Manifest, directory: Path) -> dict[str, Comparison]:
    then = {file.path: file.sha256 for file in first.files}
    now = {file.path: file.sha256 for file in describe_files(directory)}

    def comparison(path: str) -> Comparison:
        if is_record(path, first.kind):
            return "record of the run"
        if path not in now or path not in then:
            return "missing" if path in then else "new"
        return "same" if now[path] == then[path] else "differs"

    return {path: comparison(path) for path in sorted({*then, *now})}


def print_rebuilt(rebuilt: Rebuilt, format: str, console: Console, stays: bool) -> bool:
    """Prints the comparison file by file. stays: whether the second artefact does. Returns whether the bytes match."""
    rows = [{"file": path, "bytes_of_the_second": comparison} for path, comparison in rebuilt.files.items()]
    print_rows(pa.Table.from_pylist(rows, schema=_COLUMNS), format, console)
    if format == "table":
        compared = [comparison for comparison in rebuilt.files.values() if comparison != RECORD]
        others = sum(comparison != "same" for comparison in compared)
        result = (
            f"made again: {counted(len(compared), 'file')}, every byte the same"
            if rebuilt.matches
            else f"made again, and {counted(others, 'file')} of {len(compared)} are not the same"
        )
        where = f". It is in {rebuilt.directory}" if stays else "."
        console.print(Text(visible(f"{rebuilt.first.name}@{rebuilt.first.version} was {result}{where}")), soft_wrap=True)
    return rebuilt.matches
