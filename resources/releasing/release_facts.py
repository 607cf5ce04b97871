"""What the pages of a release, or the card of a model, say beside measurements: base, licences, languages, lineage, mix of
rows, changes since the champion."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resources.artefacts import behind, front_matter, licences_of
from resources.lake import LakeLayout
from resources.manifests import Manifest, ManifestError
from resources.releases import Release, ReleaseError, ReportSection
from resources.releasing.comparison import ReleaseComparison, changes_since
from resources.stages import stage

NO_CHAMPION = "No champion served before this release."
MOST_CHANGES = 40


@dataclass(frozen=True)
class ReleaseFacts:
    """base_models: names of the models from outside that training began with. licences: by external input. datasets: those that
    target and drafter learnt. changes: None without a champion, with `unchanged` as the reason."""

    version: str
    target: str
    drafter: str
    k: int
    scheme: str
    base_models: list[str] = field(default_factory=list)
    licences: dict[str, str] = field(default_factory=dict)
    languages: list[str] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    lineage: list[list[str]] = field(default_factory=list)
    mix: list[list[str]] = field(default_factory=list)
    changes: ReleaseComparison | None = None
    unchanged: str = NO_CHAMPION
    relation: str = ""
    """How the model came from its base, in the Hub's words; "" for none of them."""
    adapter: str = ""
    """The adapter that is served, and its base; "" where the whole target is served."""

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Facts that fit on a line each."""
        return [
            ("Target", self.target + (f" ({self.scheme})" if self.scheme else "")),
            *([("Served as", self.adapter)] if self.adapter else []),
            ("Drafter", self.drafter),
            *self.origin,
        ]

    @property
    def origin(self) -> list[tuple[str, str]]:
        """Base, licences and languages, a line each."""
        stated = ", ".join(f"{name}: {licence}" for name, licence in self.licences.items())
        return [
            ("Base", ", ".join(self.base_models) or "trained by this recipe"),
            ("Licences", stated or "none stated"),
            *([("Languages", ", ".join(self.languages))] if self.languages else []),
        ]

    def changed(self) -> ReportSection:
        """Data, models, code and settings that differ from the champion's."""
        title = "What changed since the champion"
        if self.changes is None:
            return ReportSection(title, ["what"], [], self.unchanged)
        differs = [*self.changes.parts, *self.changes.settings]
        rows = [[each.what, each.before or "-", each.after or "-"] for each in differs[:MOST_CHANGES]]
        left = f" {len(differs) - len(rows)} more are left out." if len(differs) > len(rows) else ""
        note = f"millrace compare {self.version} {self.changes.other} shows all of it, and the gates of both.{left}"
        return ReportSection(
            title,
            ["what", f"champion {self.changes.other}", "this release"],
            rows,
            note if rows else "Both were made from the same data, models, code and settings.",
        )

    def lineage_section(self) -> ReportSection:
        return ReportSection(
            "Made from",
            ["artefact", "version", "made on", "licence"],
            self.lineage,
            "These and everything that they were made from. millrace lineage shows it down to the log line.",
        )

    def mixed(self) -> list[ReportSection]:
        if not self.mix:
            return []
        return [
            ReportSection(
                "Mix of the training rows",
                ["source", "rows", "share"],
                self.mix,
                "Rows of the training split that supervised fine-tuning read.",
            )
        ]


def facts_of(
    lake: LakeLayout, release: Release, version: str, served: Sequence[Manifest], champion: str | None
) -> ReleaseFacts:
    """served: manifests of target and drafter. champion: the release to compare with; None: there is none."""
    changes, unchanged = None, NO_CHAMPION
    if champion is not None:
        try:
            changes = changes_since(lake, release, version, lake.artefacts("release") / release.workload / champion)
        except (ManifestError, ReleaseError) as error:
            unchanged = f"The champion cannot be compared with: {error}"
    target = served[0]
    scheme = str(target.config.get("scheme") or "")
    return ReleaseFacts(
        **_facts_of(lake, served),
        version=version,
        target=f"{target.name}@{target.version}",
        k=release.num_speculative_tokens,
        drafter=f"{release.architecture}, {release.num_speculative_tokens} tokens a draft" if release.speculator else "none",
        scheme=scheme,
        relation="adapter" if release.adapter else "quantized" if scheme else "finetune",
        adapter=f"LoRA adapter of rank {release.adapter.rank} on {release.base.name}@{release.base.version}"
        if release.adapter and release.base
        else "",
        changes=changes,
        unchanged=unchanged,
    )


def model_facts(lake: LakeLayout, model: Manifest) -> ReleaseFacts:
    """Of one version of a model or drafter."""
    drafter = str(model.config.get("architecture") or "none") if model.op == "speculator" else "none"
    return ReleaseFacts(
        **_facts_of(lake, [model]),
        version=model.version,
        target=f"{model.name}@{model.version}",
        drafter=drafter,
        k=int(model.config.get("num_speculative_tokens") or 0) if drafter != "none" else 0,
        scheme=str(model.config.get("scheme") or ""),
        relation=stage(model.name.rpartition("/")[2]).hub_relation,
    )


def _facts_of(lake: LakeLayout, models: Sequence[Manifest]) -> dict[str, Any]:
    """Base models, licences, languages, datasets, lineage and mix of rows of what these were made from."""
    ancestry = [manifest for _, manifest in behind(lake, models) if manifest is not None]
    manifests = [*models, *ancestry]
    licences = licences_of(manifests)
    external = {item.name: item for manifest in manifests for item in manifest.inputs if item.kind == "external"}
    datasets = [manifest for manifest in ancestry if manifest.kind == "dataset"]
    sft = next((manifest for manifest in datasets if manifest.name.endswith("/sft_dataset")), None)
    lineage = [[manifest.name, manifest.version, f"{manifest.created_at:%Y-%m-%d}", ""] for manifest in manifests]
    lineage += [[short_name(name), item.digest[:12], "", licences.get(name, "not stated")] for name, item in external.items()]
    return {
        "base_models": [
            short_name(name)
            for manifest in manifests
            if manifest.op == "import_base"
            for name in [str(manifest.config.get("model", ""))]
            if name
        ],
        "licences": {short_name(name): licence for name, licence in licences.items()},
        "languages": _languages(lake, sft) if sft else [],
        "datasets": sorted(
            {manifest.name for manifest in datasets if "train.parquet" in {file.path for file in manifest.files}}
        ),
        "lineage": sorted(lineage),
        "mix": _mix(sft) if sft else [],
    }


def short_name(name: str) -> str:
    """A model's name without the folders of this machine; an id of the Hub as it is."""
    return Path(name).name if Path(name).is_absolute() or name.startswith((".", "~")) else name


def _languages(lake: LakeLayout, dataset: Manifest) -> list[str]:
    stated = front_matter(lake.artefacts("dataset") / dataset.name / dataset.version).get("language")
    return [each for each in stated if isinstance(each, str)] if isinstance(stated, list) else []


def _mix(dataset: Manifest) -> list[list[str]]:
    """Rows of each source of the training split, most first."""
    rows = {source: count for source, count in dataset.metrics.get("sources", {}).items() if isinstance(count, int)}
    whole = sum(rows.values())
    return [
        [source, f"{count:,}", f"{count / whole:z.1%}"] for source, count in sorted(rows.items(), key=lambda each: -each[1])
    ]
