"""What differs between two releases: measurements, models, data, code and settings.

Only manifests and release.json are read, so a release whose models are gone can be compared too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from resources.artefacts import behind, rows_erased_from
from resources.endpoints import Endpoint
from resources.lake import LakeLayout
from resources.manifests import Manifest, ManifestError, read_manifest
from resources.releases import GateResult, Release, ReleaseError, read_release

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
    """Compares a release with another one of any workload, by default with the champion of its own.

    Raises ReleaseError if there is no champion or it is the release itself, ManifestError for a release that cannot be read.
    """
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
    """Compares a release that is being made, and has no manifest yet, with a finished one.

    Raises ManifestError or ReleaseError for one that cannot be read.
    """
    comparison = _compared(release.workload, version, other.name, _Side.of(lake, other), _Side.of_release(lake, release, None))
    return replace(comparison, parts=[part for part in comparison.parts if part.what != "made"])


def _compared(workload: str, release: str, other: str, before: _Side, after: _Side) -> ReleaseComparison:
    return ReleaseComparison(
        workload=workload,
        release=release,
        other=other,
        measurements=[
            Difference(name, before.gates.get(name, ""), after.gates.get(name, ""))
            for name in dict.fromkeys([*after.gates, *before.gates])
        ],
        parts=_differences(before.facts, after.facts),
        settings=_differences(before.settings, after.settings),
    )


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
        return cls(
            gates_by_name(release.gates),
            _facts(lake, release, served, manifests, own),
            {
                key: value
                for name, manifest in manifests.items()
                for key, value in flat(manifest.config, name.rpartition("/")[2]).items()
            },
        )


def gates_by_name(gates: Sequence[GateResult]) -> dict[str, str]:
    """By name alone: on how many rows a gate was measured may differ between two releases."""
    return {
        gate.name.replace("_", " "): (
            "nothing to compare with"
            if gate.nothing_to_compare
            else "not measured"
            if gate.measured is None
            else f"{gate.measured:z.4f}{f' ({gate.interval_text})' if gate.interval_text else ''}"
            f"{', too few to tell' if gate.state == 'too few to tell' else ''}"
        )
        for gate in gates
    }


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
    facts["code"] = ", ".join(
        sorted({manifest.code.revision[:12] for manifest in manifests.values() if manifest.code.revision})
    )
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
