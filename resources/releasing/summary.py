"""Summary of a workload from logs to release, for the demo's closing tables and the release's report.

    summary = summarise(lake, workload, serving)
    summary.sections()          the same tables for the terminal, for Markdown and for HTML
    summary.write(directory)    report.md, report.html

Counts come from the catalog in SQL, figures from the evaluation report, paths and digests from the manifests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape

from model_ops.atomic_files import write_text
from model_ops.speculators.serving import Serving
from resources.artefacts.manifest import Manifest, ManifestError
from resources.artefacts.registry import Registry
from resources.curating.record_counts import RecordCounts
from resources.lake import Lake
from resources.stages import model_chain, stage

TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Section:
    """One table: title, column names, rows of ready text, and a sentence that says how to read it."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


@dataclass(frozen=True)
class Summary:
    """Counts, metrics and manifests of the current artefacts of one workload."""

    workload: str
    records: RecordCounts
    dataset: dict[str, Any]
    evaluation: dict[str, Any]
    models: dict[str, Manifest]
    has_drafter: bool
    serving: Serving | None = None
    """How the drafter is served: adds notes about it to its section."""

    def sections(self) -> list[Section]:
        found = [self._rows(), self._models()]
        return found + ([self._drafting()] if self.has_drafter else [])

    def write(self, output: Path) -> dict[str, Any]:
        """Writes report.md and report.html; returns figures for the manifest."""
        for name in ("report.md", "report.html"):
            write_text(output / name, _render(f"{name}.j2", self))
        return {"rows_read": self.records.read, "rows_kept": self.records.kept, "recovery": self.evaluation["recovery"]}

    def _rows(self) -> Section:
        left = {**self.records.quarantined, **self.records.dropped}
        rows = [["read", "", f"{self.records.read:,}"]]
        rows += [[*_stage_and_rule(name), f"{count:,}"] for name, count in sorted(left.items(), key=lambda i: -i[1])]
        rows.append(["kept", "", f"{self.records.kept:,}"])
        return Section(
            "Rows", ["stage", "rule", "records"], rows,
            "read = kept + dropped + quarantined. The tables decisions and quarantine give each record's reason.",
        )

    def _models(self) -> Section:
        rows = []
        for name, manifest in self.models.items():
            measured_as = self.evaluation["same_directory"][stage(name).role]
            loss = self.evaluation["models"][measured_as]["loss"]
            rows.append([name, f"{loss:.4f}", f"{_weights_mb(manifest):.2f} MB", manifest.version])
        return Section(
            "Models on held-out sessions", ["model", "loss (nats/token)", "weights", "version"], rows,
            self._recovery(),
        )

    def _recovery(self) -> str:
        same = self.evaluation["same_directory"]
        if same["target"] == same["reference"]:
            return "The served model is not quantized, so there is no loss by quantization to recover from."
        return (f"Recovery of the served model: {self.evaluation['recovery']:.4f}{self._recovery_interval()} "
                "(exp of reference loss minus served loss per assistant token; 1 is lossless).")

    def _recovery_interval(self) -> str:
        low, high = self.evaluation.get("recovery_low"), self.evaluation.get("recovery_high")
        return "" if low is None or high is None else f", 95 % interval {low:.4f} to {high:.4f}"

    def _drafting(self) -> Section:
        rows = [
            [
                found["drafter"], f"{found['temperature']:g}", f"{found['tau']:.3f}",
                f"{found['tau_low']:.3f} to {found['tau_high']:.3f}", f"{found['prompts']:,}", f"{found['looping_share']:.0%}",
            ]
            for found in self.evaluation["acceptance"]
            if found["drafter"] != "none"
        ]
        return Section(
            f"Acceptance length, K = {self.evaluation['settings']['num_speculative_tokens']}",
            ["drafter", "temperature", "tau", "95 % interval", "prompts", "looping answers"], rows,
            "Tokens emitted per target forward pass, by the exact draft-and-verify decoder. Small models loop when they "
            "are greedy, which flatters an n-gram drafter at temperature 0." + self._served_as(),
        )

    def _served_as(self) -> str:
        """Notes for whoever serves the drafter."""
        if self.serving is None:
            return ""
        untrained = any(found["drafter"] == self.serving.untrained for found in self.evaluation["acceptance"])
        notes = [self.serving.note, self.serving.untrained_note if untrained else ""]
        return "".join(f" {note}" for note in notes if note)


def summarise(lake: Lake, workload: str, serving: Serving | None = None) -> Summary:
    """The summary of a workload's current artefacts. serving: how the drafter is served.

    Raises ManifestError where an artefact does not exist yet.
    """
    registry = Registry(lake, workload)
    evaluation = registry.current("dataset", "evaluation_report")
    used = {item.name.split("/", 1)[1]: item.version for item in evaluation.inputs if item.kind == "model"}
    return Summary(
        workload=workload,
        records=RecordCounts.of(registry.current("dataset", "curated_interactions")),
        dataset=registry.current("dataset", "sft_dataset").metrics,
        evaluation=json.loads((registry.directory(evaluation) / "report.json").read_text()),
        models={model.name: registry.version("model", model.name, used[model.name]) for model in model_chain()
                if model.name in used},
        has_drafter="speculator" in used,
        serving=serving,
    )


def _stage_and_rule(name: str) -> list[str]:
    where, _, rule = name.partition(": ")
    return [where, rule]


def _weights_mb(manifest: Manifest) -> float:
    weights = [file.bytes for file in manifest.files if file.path.endswith(".safetensors") and "/" not in file.path]
    if not weights:
        raise ManifestError(f"{manifest.name} {manifest.version} holds no safetensors file")
    return sum(weights) / 1e6


def _render(template: str, summary: Summary) -> str:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=select_autoescape(["html.j2"]), trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )
    return environment.get_template(template).render(summary=summary)
