"""What the pages of a release, or the card of a model, say beside measurements: base, licences, languages, lineage, mix of
rows, changes since the champion."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from resources.artefacts import behind, front_matter, licences_of, rows_erased_from
from resources.endpoints import Endpoint
from resources.lake import LakeLayout
from resources.manifests import Manifest, ManifestError, read_manifest
from resources.releases import GateResult, Release, ReleaseError, ReportSection, read_release
from resources.stages import stage

DIGEST = re.compile(r"(?=.*[a-f])(?=.*\d)[0-9a-f]{12,64}")


@dataclass(frozen=True)
class Difference:
    """One thing in both releases, as text: before in the other release, after in the one that was asked about. "" where it has
    none."""

    what: str
    before: str
    after: str


@dataclass(frozen=True)
class ReleaseComparison:
    """release, other: the versions. measurements: every gate of either. parts: models, datasets, code, sizes that differ.
    settings: settings of what both were made from that differ."""

    workload: str
    release: str
    other: str
    measurements: list[Difference]
    parts: list[Difference]
    settings: list[Difference]


def compare_releases(lake: LakeLayout, directory: Path, other: Path | None = None) -> ReleaseComparison:
    """Compares a release with another one of any workload, by default with the champion of its own. Raises ReleaseError if
    there is no champion or it is the release itself, ManifestError for a release that cannot be read."""
    if other is None:
        champion = Endpoint(lake, directory.parent.name).read().champion
        if champion is None:
            raise ReleaseError(
                f"{directory.parent.name} has no champion to compare release {directory.name} with: name a second release"
            )
        other = directory.parent / champion
        if other == directory:
            raise ReleaseError(f"release {directory.name} is the champion itself: name another release to compare it with")
    if other == directory:
        raise ReleaseError(f"release {directory.name} is named twice: name another one to compare it with")
    after, before = _Side.of(lake, directory), _Side.of(lake, other)
    return _compared(directory.parent.name, directory.name, other.name, before, after)


def changes_since(lake: LakeLayout, release: Release, version: str, other: Path) -> ReleaseComparison:
    """Compares a release that is being made, and has no manifest yet, with a finished one. Raises ManifestError or ReleaseError
    for one that cannot be read."""
    comparison = _compared(release.workload, version, other.name, _Side.of(lake, other), _Side.of_release(lake, release, None))
    return replace(comparison, parts=[part for part in comparison.parts if part.what != "made"])


def _compared(workload: str, release: str, other: str, before: _Side, after: _Side) -> ReleaseComparison:
    measurements = [
        Difference(name, before.gates.get(name, ""), after.gates.get(name, ""))
        for name in dict.fromkeys([*after.gates, *before.gates])
    ]
    parts, settings = _differences(before.facts, after.facts), _differences(before.settings, after.settings)
    return ReleaseComparison(workload, release, other, measurements, parts, settings)


@dataclass(frozen=True)
class _Side:
    gates: dict[str, str]
    facts: dict[str, str]
    settings: dict[str, str]

    @classmethod
    def of(cls, lake: LakeLayout, directory: Path) -> _Side:
        return cls.of_release(lake, read_release(directory), read_manifest(directory))

    @classmethod
    def of_release(cls, lake: LakeLayout, release: Release, own: Manifest | None) -> _Side:
        """own: the release's manifest; None before there is one."""
        served = [model for part in release.parts if (model := _manifest(lake.root / part.path)) is not None]
        manifests = {manifest.name: manifest for _, manifest in behind(lake, served) if manifest is not None}
        manifests |= {manifest.name: manifest for manifest in served}
        settings = [flat(manifest.config, name.rpartition("/")[2]) for name, manifest in manifests.items()]
        facts = _facts(lake, release, served, manifests, own)
        return cls(gates_by_name(release.gates), facts, {key: value for each in settings for key, value in each.items()})


def gates_by_name(gates: Sequence[GateResult]) -> dict[str, str]:
    """By name alone: on how many rows a gate was measured may differ between two releases."""
    said = {}
    for gate in gates:
        few = ", too few to tell" if gate.state == "too few to tell" else ""
        measured = "not measured" if gate.measured is None else f"{gate.measured:z.4f}"
        interval = f" ({gate.interval_text})" if gate.interval_text and gate.measured is not None else ""
        said[gate.name.replace("_", " ")] = (
            "nothing to compare with" if gate.nothing_to_compare else f"{measured}{interval}{few}"
        )
    return said


def _facts(
    lake: LakeLayout, release: Release, served: list[Manifest], manifests: Mapping[str, Manifest], own: Manifest | None
) -> dict[str, str]:
    facts = {
        **({"made": f"{own.created_at:%Y-%m-%d %H:%M} UTC"} if own else {}),
        "form": f"{release.form}{f', rank {release.adapter.rank}' if release.adapter else ''}",
        "drafter": f"{release.architecture}, {release.num_speculative_tokens} tokens" if release.speculator else "none",
        "drafting": release.served_drafting.label,
        "rows learnt and erased since": f"{rows_erased_from(lake, served):,}",
    }
    for manifest in served:
        weights = sum(file.bytes for file in manifest.files if file.path.endswith(".safetensors"))
        facts[f"weights of {manifest.name.rpartition('/')[2]}"] = f"{weights / 1e6:,.2f} MB"
    for name, manifest in sorted(manifests.items()):
        facts[f"{manifest.kind} {name.rpartition('/')[2]}"] = f"{manifest.version}{_rows(manifest)}"
    for manifest in [*([own] if own else []), *manifests.values()]:
        for item in manifest.inputs:
            if item.kind == "external":
                facts[f"from outside: {Path(item.name).name}"] = item.digest[:12]
    facts["code"] = ", ".join(sorted({each.code.revision[:12] for each in manifests.values() if each.code.revision}))
    return facts


def _rows(manifest: Manifest) -> str:
    rows = manifest.metrics.get("rows")
    return f" ({rows:,} rows)" if isinstance(rows, int) else ""


def flat(value: Any, prefix: str) -> dict[str, str]:
    """A setting's values by dotted key. Digests are left out: the parts tell what was read. A revision that a
    person chose is a setting."""
    if isinstance(value, dict) and value:
        return {key: each for name, item in value.items() for key, each in flat(item, f"{prefix}.{name}").items()}
    is_digest = DIGEST.fullmatch(str(value)) and prefix.rpartition(".")[2] != "revision"
    return {} if is_digest else {prefix: str(value)}


def _differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[Difference]:
    return [
        Difference(name, before.get(name, ""), after.get(name, ""))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]


def _manifest(place: Path) -> Manifest | None:
    try:
        return read_manifest(place)
    except ManifestError:
        return None


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
        note = note if rows else "Both were made from the same data, models, code and settings."
        return ReportSection(title, ["what", f"champion {self.changes.other}", "this release"], rows, note)

    def lineage_section(self) -> ReportSection:
        note = "These and everything that they were made from. millrace lineage shows it down to the log line."
        return ReportSection("Made from", ["artefact", "version", "made on", "licence"], self.lineage, note)

    def mixed(self) -> list[ReportSection]:
        note = "Rows of the training split that supervised fine-tuning read."
        section = ReportSection("Mix of the training rows", ["source", "rows", "share"], self.mix, note)
        return [section] if self.mix else []


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
    imported = [str(manifest.config.get("model", "")) for manifest in manifests if manifest.op == "import_base"]
    lineage = [[manifest.name, manifest.version, f"{manifest.created_at:%Y-%m-%d}", ""] for manifest in manifests]
    lineage += [[short_name(name), item.digest[:12], "", licences.get(name, "not stated")] for name, item in external.items()]
    return {
        "base_models": [short_name(name) for name in imported if name],
        "licences": {short_name(name): licence for name, licence in licences.items()},
        "languages": _languages(lake, sft) if sft else [],
        "datasets": sorted({each.name for each in datasets if any(file.path == "train.parquet" for file in each.files)}),
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
    whole, most_first = sum(rows.values()), sorted(rows.items(), key=lambda each: -each[1])
    return [[source, f"{count:,}", f"{count / whole:z.1%}"] for source, count in most_first]
