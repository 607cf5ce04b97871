"""Summary of a workload from logs to release, for the demo's closing tables and the release's report.

Counts come from the catalog in SQL, figures from the evaluation report, paths and digests from the manifests."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from model_ops.drafting import DraftingChoice
from model_ops.evaluation import HELD_OUT, REFERENCE, TARGET, Measurement, find, measurements_of
from model_ops.files import write_text
from model_ops.speculators import DrafterServing
from resources.artefacts import Registry
from resources.curating import RecordCounts
from resources.lake import LakeLayout
from resources.manifests import Manifest, ManifestError
from resources.releases import GateResult, GateVerdict, ReportSection, drafting_sections
from resources.releasing.model_card import render, write_card
from resources.releasing.release_facts import ReleaseFacts
from resources.releasing.server_sections import (
    ACCEPTANCE,
    LOSSES,
    keeps_rollouts,
    passed_section,
    report_charts,
    rollout_section,
    server_sections,
)
from resources.stages import model_chain, stage

BLOCKS_SHOWN = 5
NOTHING = "-"
"""In the place of a number that there cannot be."""
COMPARED_WITH_UNQUANTIZED = (
    ("recovery", "recovery", "", "4f"),
    ("divergence", "divergence", " nats/token", "3g"),
    ("agreement", "agreement", "", "4f"),
    ("accuracy_kept", "score kept", "", "3f"),
)
"""Measurement, its title, its unit, its digits."""


@dataclass(frozen=True)
class Summary:
    """Counts, metrics and manifests of the current artefacts of one workload."""

    workload: str
    records: RecordCounts
    dataset: dict[str, Any]
    evaluation: dict[str, Any]
    models: dict[str, Manifest]
    has_drafter: bool
    serving: DrafterServing | None = None
    """How the drafter is served: adds notes about it to its section."""
    gates: Sequence[GateResult] = ()
    release: str = ""
    """The release's version."""
    measured_at: datetime | None = None
    speed: Mapping[str, Any] = field(default_factory=dict)
    """The evaluation's records of speed, which depend on the machine."""
    teachers: Sequence[Manifest] = ()
    """Datasets of teachers' answers that the models were trained on."""
    facts: ReleaseFacts | None = None
    """What the pages of a release say beside measurements."""
    choice: DraftingChoice | None = None
    """What the release drafts with."""
    learning: Sequence[ReportSection] = ()
    """What training on rewards did."""
    worth: str = ""
    """Whether the release is better than its base and than what is served."""

    @property
    def verdict(self) -> GateVerdict:
        return GateVerdict.of(self.gates)

    def all_sections(self) -> list[ReportSection]:
        """Gates and what changed first, what a release was made from last; each chart in the section that it is about."""
        sections, first = self.sections(), 1 if self.gates else 0
        if self.facts:
            origins = [*self.facts.mixed(), self.facts.lineage_section()]
            sections = [*sections[:first], self.facts.changed(), *sections[first:], *origins]
        losses = {name: find(self.measurements, "loss", of=stage(name).role) for name in self.models}
        charts = report_charts(self.evaluation, self.speed, {name: loss.value for name, loss in losses.items() if loss})
        sections = [replace(section, charts=charts.pop(section.title, section.charts)) for section in sections]
        return sections + [ReportSection(title, [], [], charts=left) for title, left in charts.items()]

    def card_sections(self) -> list[ReportSection]:
        """The sections of a model card, which shows no rows."""
        return [section for section in self.all_sections() if not section.shows_rows and (section.rows or section.note)]

    def sections(self) -> list[ReportSection]:
        sections = [self._gates()] if self.gates else []
        sections += [self._rows(), *self._teachers(), self._models(), *self._quantization(), *self.learning]
        sections += server_sections(self.evaluation, self.speed)
        sections += drafting_sections(self.choice) if self.choice else []
        sections += [self._tasks()] if self.evaluation.get("tasks") else []
        sections += [self._drafting()] if self.has_drafter and self.evaluation["acceptance"] else []
        return sections

    @property
    def about(self) -> str:
        """The release's version and the day of its measurements; "" if unknown."""
        day = f"measured on {self.measured_at:%Y-%m-%d}" if self.measured_at else ""
        return ", ".join(part for part in (f"release {self.release}" if self.release else "", day) if part)

    def write(self, output: Path) -> dict[str, Any]:
        """Writes report.md, report.html and, for a release, README.md; returns figures for the manifest."""
        for name in ("report.md", "report.html"):
            write_text(output / name, render(f"{name}.j2", summary=self))
        if self.facts is not None:
            write_card(output, self.workload, self.facts, self.measurements, render("README.md.j2", summary=self))
        recovery = find(self.measurements, "recovery", on=HELD_OUT)
        return {
            "rows_read": self.records.read,
            "rows_kept": self.records.rows,
            **({"recovery": recovery.value} if recovery else {}),
        }

    @property
    def measurements(self) -> list[Measurement]:
        return measurements_of(self.evaluation)

    def _gates(self) -> ReportSection:
        rows, k = [], self.evaluation.get("settings", {}).get("num_speculative_tokens")
        for gate in self.gates:
            measured = "not measured" if gate.measured is None else f"{gate.measured:z.4f}"
            measured = NOTHING if gate.nothing_to_compare else measured
            drafted = f", K {k}" if gate.name.startswith("acceptance") and k else ""
            about = gate.reason if gate.measured is None else gate.compared_text + drafted
            rows.append([gate.name.replace("_", " "), gate.state, measured, gate.interval_text, gate.wanted_text, about])
        return ReportSection(
            "Gates",
            ["gate", "state", "measured", "95 % interval", "wanted", "of"],
            rows,
            "A loss or a score must meet its bound at the unfavourable end of the interval, a kept score at the favourable "
            "one. Losses are in nats per answer token; scores and gains are shares. A gate whose measurement failed is missed; "
            "one that has too few items to tell, or nothing to compare with yet, is neither held nor missed.",
        )

    def _tasks(self) -> ReportSection:
        rows = [
            [
                measured.on,
                measured.of if not measured.against else f"{measured.of} - {measured.against}",
                measured.sampling,
                f"{measured.value:z.3f}",
                "" if measured.low is None else f"{measured.low:z.3f} to {measured.high:z.3f}",
                *(self._share_beside(measured, what) for what in ("solved", "cut")),
                f"{measured.n:,}",
            ]
            for measured in self.measurements
            if measured.what in ("accuracy", "accuracy_gain")
        ]
        rows += [
            [suite, why, "", "not measured", "", "", "", ""]
            for suite, why in self.evaluation.get("not_measured", {}).items()
            if suite in self.evaluation["tasks"]
        ]
        return ReportSection(
            "Evaluation suites",
            ["suite", "model", "sampling", "score", "95 % interval", "solved", "cut", "items"],
            rows,
            "Score: mean of the answers to an item, mean of the items; a difference of two models is over the items that both "
            "answered. Solved: items of which one answer is wholly right. Cut: answers that ended at the token limit.",
        )

    def _share_beside(self, score: Measurement, what: Literal["solved", "cut"]) -> str:
        share = find(self.measurements, what, of=score.of, on=score.on, sampling=score.sampling)
        return "" if share is None or score.what != "accuracy" else f"{share.value:z.3f}"

    def _rows(self) -> ReportSection:
        left = {**self.records.quarantined, **self.records.dropped}
        rows = [["read", "", f"{self.records.read:,}"]]
        rows += [[*name.partition(": ")[::2], f"{count:,}"] for name, count in sorted(left.items(), key=lambda i: -i[1])]
        rows.append(["kept", "", f"{self.records.rows:,}"])
        return ReportSection(
            "Rows",
            ["stage", "rule", "records"],
            rows,
            f"{self.records.read_text}. read = kept + dropped + quarantined. The tables decisions and quarantine give each "
            "record's reason.",
        )

    def _teachers(self) -> list[ReportSection]:
        """The models whose answers were learnt, with the licence that the recipe names."""
        rows = []
        for manifest in self.teachers:
            config, answered = manifest.config, f"{manifest.metrics['answered']:,}"
            named = config["model"] or _short(config["base"])
            rows.append([named, config["licence"], config["base_url"] or "in process", answered])
        note = "Models whose answers were learnt instead of the logged ones. Check that the licence allows this use."
        columns = ["teacher", "licence of its answers", "endpoint", "rows"]
        return [ReportSection("Teachers", columns, rows, note)] if rows else []

    def _models(self) -> ReportSection:
        rows = []
        for name, manifest in self.models.items():
            loss = find(self.measurements, "loss", of=stage(name).role)
            value, perplexity = (f"{loss.value:z.4f}", f"{math.exp(loss.value):z.3f}") if loss else ("not measured", "")
            scheme = manifest.config.get("scheme")
            named = f"{name} ({scheme})" if scheme else name
            rows.append([named, value, perplexity, f"{_weights_mb(manifest):z.2f} MB", manifest.version])
        same = self.evaluation["same_directory"]
        plain = "The served model is not quantized, so there is no loss by quantization to recover from."
        note = plain if same["target"] == same.get("reference") else ""
        return ReportSection(LOSSES, ["model", "loss (nats/token)", "perplexity", "weights", "version"], rows, note)

    def _quantization(self) -> list[ReportSection]:
        """What quantization changed, and the rows that it changed most; nothing where the served model is not quantized."""
        rows = [
            [
                title,
                measured.on,
                f"{measured.value:.{digits}}{unit}",
                "" if measured.low is None else f"{measured.low:.{digits}} to {measured.high:.{digits}}",
                f"{measured.n:,} {measured.counted}",
            ]
            for what, title, unit, digits in COMPARED_WITH_UNQUANTIZED
            for measured in self.measurements
            if measured.what == what and measured.against == "reference"
        ]
        if len(rows) < 2:
            return []
        rows += self._size()
        parts = self.evaluation.get("against_reference", {})
        measured = [
            ReportSection(
                "Served model against its unquantized form",
                ["what", "on", "measured", "95 % interval", "of"],
                rows,
                "Recovery is exp of reference loss minus served loss per assistant token; 1 is lossless. Divergence "
                "is KL(unquantized || served) at assistant tokens, agreement the share of them at which both have the "
                "same likeliest token. Size is that of all weights, over the unquantized ones.",
            )
        ]
        if parts.get("worst_rows"):
            columns = ["row", "divergence (nats/token)", "tokens"]
            worst = [[row["row_id"], f"{row['divergence']:.3g}", f"{row['tokens']:,}"] for row in parts["worst_rows"]]
            note = "Test rows by id: millrace show finds their text."
            measured.append(ReportSection("Rows that quantization changed most", columns, worst, note, shows_rows=True))
        if parts.get("blocks"):
            columns = ["block", "divergence that is gone with its unquantized weights"]
            costs = [[str(block["block"]), f"{block['cost']:.3g}"] for block in parts["blocks"][:BLOCKS_SHOWN]]
            measured.append(ReportSection("Blocks by the cost of their quantization", columns, costs))
        return measured

    def _size(self) -> list[list[str]]:
        by_role = {stage(name).role: manifest for name, manifest in self.models.items()}
        same = self.evaluation["same_directory"]
        served, unquantized = (by_role.get(same.get(role, "")) for role in (TARGET, REFERENCE))
        if served is None or unquantized is None:
            return []
        sizes = _weights_mb(served), _weights_mb(unquantized)
        return [["size", "", f"{sizes[0] / sizes[1]:z.3f}", "", f"{sizes[0]:z.2f} of {sizes[1]:z.2f} MB"]]

    def _drafting(self) -> ReportSection:
        notes = []
        if self.serving is not None:
            untrained = any(measured["drafter"] == self.serving.untrained for measured in self.evaluation["acceptance"])
            notes = [self.serving.note, self.serving.untrained_note if untrained else ""]
        rows = [
            [
                measured["drafter"],
                str(measured["num_speculative_tokens"]),
                measured["sampling"],
                f"{measured['tau']:z.3f}",
                f"{measured['tau_low']:.3f} to {measured['tau_high']:.3f}",
                f"{measured['prompts']:,}",
                f"{measured['looping_share']:z.0%}",
            ]
            for measured in self.evaluation["acceptance"]
            if measured["drafter"] != "none"
        ]
        return ReportSection(
            ACCEPTANCE,
            ["drafter", "K", "sampling", "tau", "95 % interval", "prompts", "looping answers"],
            rows,
            "Tokens emitted per target forward pass, by the exact draft-and-verify decoder; K tokens are drafted. n-gram and "
            "suffix have their best K on the validation split. Small models loop when they are greedy, which flatters an "
            "n-gram drafter." + "".join(f" {note}" for note in notes if note),
        )


def summarise(
    lake: LakeLayout,
    workload: str,
    serving: DrafterServing | None = None,
    gates: Sequence[GateResult] = (),
    release: str = "",
    facts: ReleaseFacts | None = None,
    choice: DraftingChoice | None = None,
    worth: str = "",
) -> Summary:
    """The summary of a workload's current artefacts. serving: how the drafter is served. gates, release, facts, choice, worth:
    of the release that the summary is about. Raises ManifestError where an artefact does not exist yet."""
    registry = Registry(lake, workload)
    evaluation = registry.current("dataset", "evaluation_report")
    used = {item.name.split("/", 1)[1]: item.version for item in evaluation.inputs if item.kind == "model" and not item.pinned}
    models = {
        model.name: registry.version("model", model.name, used[model.name]) for model in model_chain() if model.name in used
    }
    learnt = {
        item.version
        for manifest in models.values()
        for item in manifest.inputs
        if item.kind == "dataset" and item.name.endswith("/teacher_answers")
    }
    report, speed = read_evaluation(registry.directory(evaluation))
    return Summary(
        workload=workload,
        records=RecordCounts.of(registry.current("dataset", "curated_interactions")),
        dataset=registry.current("dataset", "sft_dataset").metrics,
        evaluation=report,
        speed=speed,
        choice=choice,
        models=models,
        teachers=[registry.version("dataset", "teacher_answers", version) for version in sorted(learnt)],
        has_drafter="speculator" in used,
        serving=serving,
        gates=gates,
        worth=worth,
        release=release,
        measured_at=evaluation.created_at,
        facts=facts,
        learning=[*(rollout_section(lake, models[name]) for name in models if keeps_rollouts(name)), *passed_section(report)],
    )


def read_evaluation(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """report.json and speed.json of an evaluation."""
    report, speed = (json.loads((directory / name).read_text()) for name in ("report.json", "speed.json"))
    return report, speed


def _short(base: str) -> str:
    """A model's place without the folders of this machine."""
    return Path(base).name if Path(base).is_absolute() else base


def _weights_mb(manifest: Manifest) -> float:
    weights = [file.bytes for file in manifest.files if file.path.endswith(".safetensors") and "/" not in file.path]
    if not weights:
        raise ManifestError(f"{manifest.name} {manifest.version} holds no safetensors file")
    return sum(weights) / 1e6
