"""OpenLineage events of a run: START, then COMPLETE, FAIL or ABORT of every step, with its inputs and outputs.

    with lineage_events(os.environ, recipe, graph, lake) as events:
        tell = events(run_id, "train")                   # for one Dagster run
        tell("START", "sft_dataset", timestamp)

Off unless the environment names a destination (pipelines/running/openlineage/destination.py). Whatever goes wrong here is a
note, and the run goes on.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import dagster as dg
import pyarrow.parquet as pq

from pipelines.contract import Recipe
from pipelines.running.openlineage.destination import OpenLineageSettings, destination
from pipelines.running.openlineage.events import Dataset, State, StepRun, event
from resources.artefacts import current_manifests
from resources.catalog import columns_of
from resources.lake import SCHEMAS, LakeLayout
from resources.launching import relay
from resources.stages import Stage, named_dataset_stage, stage


class Tell(Protocol):
    """Reports a change of a step's state. at: seconds since 1970. error: a sentence."""

    def __call__(self, state: State, step: str, at: float, error: str = "") -> None: ...


Events = Callable[[str, str], Tell]
"""(Dagster run id, job) -> what reports that run's steps."""


@contextmanager
def lineage_events(environment: Mapping[str, str], recipe: Recipe, graph: dg.Definitions, lake: LakeLayout) -> Iterator[Events]:
    """What reports steps while the block lasts. Raises OpenLineageError if the environment names no usable destination."""
    settings = OpenLineageSettings.of(environment)
    if settings is None:
        yield lambda run_id, job: _silent
        return
    read, made = _steps(graph)
    datasets = _Datasets(lake, recipe)
    with destination(settings, lambda sentence: relay({"event": "note", "message": sentence})) as send:

        def events(run_id: str, job: str) -> Tell:
            def tell(state: State, step: str, at: float, error: str = "") -> None:
                run = StepRun(
                    settings.namespace,
                    f"{recipe.workload}/{step}",
                    str(uuid.uuid5(uuid.UUID(run_id), step)),
                    run_id,
                    f"{recipe.workload}/{job}",
                )
                try:
                    inputs = [dataset for name in read.get(step, ()) for dataset in datasets.of(name, finished=True)]
                    outputs = [dataset for name in made.get(step, ()) for dataset in datasets.of(name, state == "COMPLETE")]
                    send(event(state, run, datetime.fromtimestamp(at, UTC), inputs, outputs, error))
                except Exception as problem:
                    relay(
                        {
                            "event": "note",
                            "message": f"the OpenLineage event {state} of {step} was not made "
                            f"({type(problem).__name__}); the run does not depend on it",
                        }
                    )

            return tell

        yield events


def _silent(state: State, step: str, at: float, error: str = "") -> None:
    """Reports nothing."""


def _steps(graph: dg.Definitions) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The assets that each step reads and makes, by the last part of their names."""
    nodes = graph.resolve_asset_graph()
    read: dict[str, list[str]] = {}
    made: dict[str, list[str]] = {}
    for assets in nodes.assets_defs:
        if not assets.is_executable:
            continue
        step = assets.op.name.split("__")[-1]
        made[step] = sorted(key.path[-1] for key in assets.keys)
        parents = {parent for key in assets.keys for parent in nodes.get(key).parent_keys}
        read[step] = sorted({parent.path[-1] for parent in parents} - set(made[step]))
    return read, made


@dataclass(frozen=True)
class _Datasets:
    """The datasets of OpenLineage behind a recipe's assets."""

    lake: LakeLayout
    recipe: Recipe

    def of(self, name: str, finished: bool) -> list[Dataset]:
        """Where an asset lies, and if it is finished, what it is like now."""
        if name == "logs":
            return [Dataset(source.uri) for source in self.recipe.sources.values()]
        found = self._stage(name)
        if found.kind == "digest":
            return []
        if found.kind == "table":
            return [
                Dataset(
                    str(self.lake.table(name)),
                    schema={field.name: str(field.type) for field in SCHEMAS[name]},
                    columns=self._columns(name),
                )
            ]
        if found.kind == "endpoint":
            return [Dataset(str(self.lake.root / "endpoints" / f"{self.recipe.workload}.json"))]
        path = self._home(name)
        manifest = current_manifests(self.lake, self.recipe.workload).get(found.artefact or name) if finished else None
        if manifest is None:
            return [Dataset(str(path), columns=self._columns(name))]
        parquet = [path / manifest.version / file.path for file in manifest.files if file.path.endswith(".parquet")]
        known: dict[str, Any] = {}
        if parquet:
            known = {
                "schema": {field.name: str(field.type) for field in pq.read_schema(parquet[0])},
                "rows": sum(pq.read_metadata(file).num_rows for file in parquet),
            }
        size = sum(file.bytes for file in manifest.files)
        return [Dataset(str(path), manifest.version, columns=self._columns(name), size=size, **known)]

    def _stage(self, name: str) -> Stage:
        return named_dataset_stage(name) if name in self.recipe.datasets.named else stage(name)

    def _home(self, name: str) -> Path:
        found = self._stage(name)
        if found.kind == "table":
            return self.lake.table(name)
        home = self.lake.artefacts(found.kind) / self.recipe.workload
        return home if found.kind == "release" else home / name

    def _columns(self, name: str) -> dict[str, list[tuple[str, str]]]:
        return {
            column: [(str(self._home(source)), field) for source, field in sources]
            for column, sources in columns_of(name).items()
        }
