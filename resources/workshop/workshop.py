"""What assets use: one workload's lake, registry and launcher, and the two ways to make an artefact.

    workshop.train("sft_model", "sft", settings, {"model": base, "dataset": rows}, context)
    workshop.build("dataset", "sft_dataset", op=..., sources=(...), config=..., inputs=[...], work=...)

`train` hands a job to the launcher's worker, `build` calls a function of this process; both continue what a killed run
left in the artefact's directory, and the manifest is written last."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np

from model_ops.files import hub
from model_ops.jobs import Job, Settings
from resources.artefacts import Registry, step_of, up_to_date, warm_start_parent
from resources.catalog import publish
from resources.digests import counts_alone, slice_digest
from resources.lake import LakeLayout, Tables, naming_damage
from resources.launching import Launcher, relay
from resources.manifests import SCRATCH, Input, Kind, Manifest, ManifestError, erased_in, external_input
from resources.releasing import write_version_card
from resources.sources import content_digest
from resources.workshop.tracking import TrackingKind, tracked
from resources.workshop.training_job import commit_to_import, counted_settings


@dataclass(frozen=True)
class Workshop:
    """Makes the artefacts of one workload."""

    registry: Registry
    launcher: Launcher
    threads: int
    tracking: TrackingKind = "none"
    unchanged: frozenset[str] = frozenset()
    """Models that this run takes as they are, although their own inputs may have newer versions."""

    @property
    def lake(self) -> LakeLayout:
        return self.registry.lake

    @property
    def workload(self) -> str:
        return self.registry.workload

    @property
    def tables(self) -> Tables:
        return Tables(self.lake)

    def current(self, kind: Kind, name: str) -> Manifest:
        """The manifest that downstream steps take. Raises ManifestError if there is none yet, or if it is outdated and not
        one of those that this run keeps."""
        if kind == "model" and name in self.unchanged:
            return self.registry.current(kind, name)
        return up_to_date(self.registry, kind, name)

    def elsewhere(self, name: str, version: str | None = None) -> Manifest:
        """The manifest of any dataset of the lake, named workload/name: its current version, or the one given. Raises
        ManifestError if there is none."""
        workload, _, own = name.partition("/")
        registry = Registry(self.lake, workload)
        versions = [manifest.version for manifest in registry.versions("dataset", own)]
        if not versions:
            raise ManifestError(f'there is no dataset {name}; `millrace sql "select distinct name from datasets"` lists them')
        if version and version not in versions:
            raise ManifestError(f"{name} has no version {version}; there are {', '.join(versions)}")
        return registry.version("dataset", own, version) if version else registry.current("dataset", own)

    def is_reused(self, manifest: Manifest) -> bool:
        """Whether an artefact was made by another run than the current one."""
        return manifest.run_id != self.registry.run_id

    def comes_from(self, kind: Kind, name: str, given: Manifest) -> bool:
        """Whether the current version of an artefact was made from exactly this one."""
        current = self.registry.current(kind, name) if self.registry.exists(kind, name) else None
        return current is not None and given.digest in {item.digest for item in current.inputs}

    def is_alike(self, kind: Kind, name: str, settings: Settings, given: Manifest) -> bool:
        """Whether it was also made with these settings."""
        return self.comes_from(kind, name, given) and (
            self.registry.current(kind, name).config == counted_settings(settings.resolved())
        )

    def learnt_before(self, kind: Kind, name: str, inputs: Mapping[str, Manifest], same: str, dataset: str) -> Manifest | None:
        """The version of the input `dataset` that the parent of a warm start was trained on; None if there is none, if it is
        gone, or if the parent's input `same` is another one than in these inputs."""
        parent = warm_start_parent(self.registry, kind, name, inputs.values())
        if parent is None or inputs[same].digest not in {item.digest for item in parent.inputs}:
            return None
        datasets = (item for item in parent.inputs if item.kind == "dataset" and not item.pinned)
        trained_on = next((item for item in datasets if item.name == inputs[dataset].name), None)
        with suppress(ManifestError):
            if trained_on is not None:
                return self.registry.version("dataset", trained_on.name.partition("/")[2], trained_on.version)
        return None

    def directory(self, manifest: Manifest) -> Path:
        return self.registry.directory(manifest)

    def slice(self, table: str, as_served: bool = False) -> Input:
        """This workload's rows of a table, as an input: their digest, not a table version."""
        return Input(kind="table", name=table, digest=slice_digest(self.tables, table, self.workload, as_served))

    def outside(self, places: Mapping[str, str]) -> list[Input]:
        """External files as inputs, by the digest of their content."""
        return [Input(kind="external", name=name, digest=content_digest(name, uri)) for name, uri in sorted(places.items())]

    def external(self, place: str) -> Input:
        """An external model as an input."""
        return external_input(place)

    def commit_to_import(self, model: str, branch: str, wanted: str | None) -> str | None:
        """The commit of the Hub at which a base model is imported; None where there is none (training_job.py)."""
        return commit_to_import(self.registry, model, branch, wanted, self.hub_commit)

    def hub_commit(self, model: str, revision: str | None) -> str | None:
        """The commit of a model on the Hub, or of its local copy; None if neither is known."""
        return hub.imported_commit(model, revision)

    def publish_catalog(self) -> None:
        """Brings the catalog up to date."""
        publish(self.lake)

    def train(
        self,
        name: str,
        operation: str,
        settings: Settings,
        inputs: Mapping[str, Manifest],
        context: dg.AssetExecutionContext,
        kind: Kind = "model",
        outside: Sequence[str] = (),
        continue_from: str | None = None,
        pinned: Mapping[str, Manifest] | None = None,
    ) -> Manifest:
        """Makes an artefact with a worker. outside: models that are not artefacts of the lake. continue_from: the warm
        start's parent: `last` for the lake's last version if there is one, or an external directory. pinned: further inputs
        that stay what they are when a newer version becomes current.
        Keys that the settings leave out are filled here, for the job and its version alike."""
        settings = settings.resolved()
        previous = warm_start_parent(self.registry, kind, name, inputs.values()) if continue_from == "last" else None
        if previous:
            inputs = {**inputs, "previous": previous}
        elsewhere = [place for place in (*outside, continue_from) if place and place != "last"]

        def work(output: Path) -> dict[str, Any]:
            places = {role: self.directory(manifest) for role, manifest in {**inputs, **(pinned or {})}.items()}
            given = settings.model_dump(mode="json")
            job = Job(operation=operation, output=output, inputs=places, settings=given, threads=self.threads)
            tracked_as = f"{self.workload}/{name}/{output.name}"
            with tracked(output / "metrics.jsonl", self.tracking, self.lake.root / "tracking", tracked_as):
                began_s = time.monotonic()
                metrics = self.launcher.run(job, context)
            return {"seconds": round(time.monotonic() - began_s, 3), **metrics}  # a training's own leave out loading

        taken = {
            manifest.digest: manifest.as_input().model_copy(update={"pinned": True}) for manifest in (pinned or {}).values()
        }
        taken |= {manifest.digest: manifest.as_input() for manifest in inputs.values()}
        return self.build(
            kind,
            name,
            op=operation,
            sources=(f"model_ops/operations/{operation}.py",),
            config=counted_settings(settings),
            inputs=[*taken.values(), *map(self.external, elsewhere)],
            work=work,
        )

    def answers_of(
        self, model: str | Path, context: dg.AssetExecutionContext
    ) -> Callable[[Path, Path, dict[str, Any]], dict[str, Any]]:
        """Runs operation sample_answers on a model (a directory, or a Hugging Face id): (prompts, output, settings)."""
        here = Path(model).is_dir()

        def run(prompts: Path, output: Path, settings: dict[str, Any]) -> dict[str, Any]:
            inputs = {"prompts": prompts, **({"model": Path(model)} if here else {})}
            given = {**settings, **({} if here else {"model": str(model)})}
            job = Job(operation="sample_answers", output=output, inputs=inputs, settings=given, threads=self.threads)
            return self.launcher.run(job, context)

        return run

    def embed(self, texts: Path, model: str | Path, max_length: int) -> np.ndarray:
        """Embeddings of the texts in texts/texts.parquet, made by a worker: [rows, hidden], memory-mapped. A text of more than
        max_length tokens gets zeros."""
        into = texts / "vectors"
        inputs, settings = {"model": Path(model), "texts": texts}, {"max_length": max_length}
        self.launcher.run(Job(operation="embed", output=into, inputs=inputs, settings=settings, threads=self.threads))
        return np.load(into / "embeddings.npy", mmap_mode="r")

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
        """Makes an artefact with a function that fills a directory and returns metrics. The current one stays, whatever code
        made it, if it was made of these inputs and only counts of their rows were kept."""
        inputs = [
            item.model_copy(update={"taken_as_is": True})
            if item.kind == "model" and item.name.rpartition("/")[2] in self.unchanged and not item.pinned
            else item
            for item in inputs
        ]
        if (current := self._current_of_erased_rows(kind, name, config, inputs)) is not None:
            return self._reused(current)
        draft = self.registry.draft(kind, name, op, sources, config, inputs)
        if draft.finished is not None:
            return self._reused(draft.finished)
        with naming_damage(lambda: self._files_of(inputs)):
            metrics = work(draft.directory)
            if kind == "model" and any(path.name != SCRATCH for path in draft.directory.iterdir()):
                write_version_card(draft.directory, self.lake, self.registry.manifest_of(draft, metrics, []))
            finished = self.registry.finish(draft, metrics)
        self.publish_catalog()
        return finished

    def _reused(self, finished: Manifest) -> Manifest:
        """Says that an artefact of an earlier run is taken."""
        if self.is_reused(finished):
            at = finished.created_at.isoformat()
            step, run = step_of(finished.name.split("/", 1)[1]), finished.run_id
            relay({"event": "reused", "step": step, "version": finished.version, "made_at": at, "run": run})
        self.publish_catalog()
        return finished

    def _current_of_erased_rows(self, kind: Kind, name: str, config: dict[str, Any], inputs: list[Input]) -> Manifest | None:
        """The current artefact, if it cannot be made again from these inputs with this configuration."""
        if not any(map(self._is_gone, inputs)) or not self.registry.exists(kind, name):
            return None
        current = self.registry.current(kind, name)
        same = [item.digest for item in current.inputs] == [item.digest for item in inputs] and current.config == config
        return current if same else None

    def _is_gone(self, item: Input) -> bool:
        """Whether only counts of an input's rows were kept."""
        if item.kind == "table":
            return counts_alone(self.lake, self.workload, item.digest)
        erased = erased_in(self.lake.artefacts("dataset") / item.name / item.version) if item.kind == "dataset" else None
        return erased is not None and bool(erased.counted_as)

    def _files_of(self, inputs: list[Input]) -> Iterator[str | Path]:
        """Parquet files of the inputs that lie in the lake."""
        for each in inputs:
            if each.kind == "table":
                yield from self.tables.files(each.name, workload=("=", self.workload))
            elif each.kind == "dataset" and each.version:
                yield from sorted((self.lake.artefacts("dataset") / each.name / each.version).rglob("*.parquet"))
