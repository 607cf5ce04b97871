"""The summary of one way from logs to release: what the closing table, the release's report and the model card say.

    summary = summarise(lake, workload)
    summary.as_markdown()       summary.as_html()

Counts come from the catalog in SQL, figures from the evaluation report, paths and digests from the manifests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape

from resources.atomic import write_text
from resources.catalog import query
from resources.lake import Lake
from resources.manifest import Manifest, ManifestError
from resources.registry import Registry
from resources.sql_files import read_sql

TEMPLATES = Path(__file__).with_name("templates")


class CountsError(Exception):
    """Rows were lost or invented on the way: read is not kept + dropped + quarantined."""


@dataclass(frozen=True)
class RowFates:
    """What became of the records of a workload. `dropped` and `quarantined` are counts by (stage, rule)."""

    read: int
    kept: int
    dropped: dict[str, int]
    quarantined: dict[str, int]

    @property
    def adds_up(self) -> bool:
        return self.read == self.kept + sum(self.dropped.values()) + sum(self.quarantined.values())

    def as_rows(self) -> list[dict[str, Any]]:
        """What left the traffic and why, most frequent first."""
        left = {**self.dropped, **self.quarantined}
        return [{"stage and rule": rule, "records": count} for rule, count in sorted(left.items(), key=lambda i: -i[1])]

    def check(self) -> None:
        """Raises CountsError unless read = kept + dropped + quarantined."""
        if not self.adds_up:
            dropped, quarantined = sum(self.dropped.values()), sum(self.quarantined.values())
            raise CountsError(
                f"{self.read} records were read, but {self.kept} kept + {dropped} dropped + {quarantined} quarantined "
                f"= {self.kept + dropped + quarantined}: rows were lost or counted twice"
            )


@dataclass(frozen=True)
class Summary:
    """Everything worth saying about one release of one workload."""

    workload: str
    rows: RowFates
    dataset: dict[str, Any]
    evaluation: dict[str, Any]
    models: dict[str, Manifest]
    speculator: Manifest | None

    def model_sizes_mb(self) -> dict[str, float]:
        """Bytes of weights by stage, in MB."""
        return {stage: _weights_mb(manifest) for stage, manifest in self.models.items()}

    def write(self, output: Path) -> dict[str, Any]:
        """Writes report.md and report.html; returns the figures worth keeping in a manifest."""
        write_text(output / "report.md", self.as_markdown())
        write_text(output / "report.html", self.as_html())
        return {"rows_read": self.rows.read, "rows_kept": self.rows.kept, "recovery": self.evaluation.get("recovery")}

    def as_markdown(self) -> str:
        return _render("report.md.j2", self)

    def as_html(self) -> str:
        return _render("report.html.j2", self)


def row_fates(lake: Lake, workload: str, curate_version: str) -> RowFates:
    """The fates of a workload's records at one version of its curation, checked to add up. Raises CountsError."""
    parameters = {"workload": workload, "curate_version": curate_version}
    rows = query(lake, read_sql("report/row_fates"), parameters).to_pylist()
    read = query(lake, read_sql("report/records_read"), {"workload": workload}).to_pylist()[0]["records"]

    def by_rule(fate: str) -> dict[str, int]:
        return {f"{row['stage']}: {row['rule']}": row["records"] for row in rows if row["fate"] == fate}

    fates = RowFates(read, sum(by_rule("kept").values()), by_rule("dropped"), by_rule("quarantined"))
    fates.check()
    return fates


def summarise(lake: Lake, workload: str) -> Summary:
    """The summary of a workload's current artefacts. Raises ManifestError where the graph has not come that far."""
    registry = Registry(lake, workload)
    evaluation = registry.current("dataset", "evaluation_report")
    report = json.loads((registry.directory(evaluation) / "report.json").read_text())
    used = {item.name.split("/", 1)[1]: item.version for item in evaluation.inputs}
    models = {}
    for stage in ("base_model", "sft_model", "student_model", "quantized_model"):
        if stage in used:
            models[stage] = registry.version("model", stage, used[stage])
    return Summary(
        workload=workload,
        rows=row_fates(lake, workload, registry.current("dataset", "curated_interactions").version),
        dataset=registry.current("dataset", "sft_dataset").metrics,
        evaluation=report,
        models=models,
        speculator=registry.version("model", "speculator", used["speculator"]) if "speculator" in used else None,
    )


def _weights_mb(manifest: Manifest) -> float:
    weights = [file.bytes for file in manifest.files if file.path.endswith(".safetensors")]
    if not weights:
        raise ManifestError(f"{manifest.name} {manifest.version} holds no safetensors file")
    return sum(weights) / 1e6


def _render(template: str, summary: Summary) -> str:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=select_autoescape(["html", "html.j2"]), trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )
    return environment.get_template(template).render(summary=summary)
