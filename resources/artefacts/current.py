"""The current artefacts of a workload, and whether everything behind an artefact is still current.

    current_manifests(lake, "math-tutor")                # name -> manifest, read from current.json and manifest.json
    up_to_date(registry, "model", "sft_model")           # its manifest; ManifestError if one of its inputs is outdated
    warm_start_parent(registry, "model", "sft_model", made_from=[dataset])
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from resources.artefacts.freshness import ARTEFACTS, causes_of, stale_inputs
from resources.artefacts.manifest import Kind, Manifest, ManifestError, read_manifest
from resources.artefacts.registry import Registry
from resources.lake import Lake


def current_manifests(lake: Lake, workload: str) -> dict[str, Manifest]:
    """The current artefacts of a workload, by the last part of their name. One that cannot be read is left out."""
    found = {}
    for kind in ARTEFACTS:
        home = lake.artefacts(kind) / workload
        for pointer in [home / "current.json"] if kind == "release" else sorted(home.glob("*/current.json")):
            if (manifest := _pointed_to(pointer)) is not None:
                found[manifest.name.rpartition("/")[2]] = manifest
    return found


def up_to_date(registry: Registry, kind: Kind, name: str) -> Manifest:
    """The current manifest of an artefact that downstream steps take. Only it and the artefacts behind it are read.

    Raises ManifestError if there is none yet, or if something behind it is no longer current: an artefact made from it would
    use an earlier run's data or weights. The message names the asset to materialize.
    """
    manifest = registry.current(kind, name)
    if causes := outdated_behind(registry.lake, manifest):
        first, why = step_of(causes[0][0]), "; ".join(sentence for _, sentence in causes)
        raise ManifestError(f"{manifest.name} {manifest.version} is out of date: {why}. First run: millrace run RECIPE "
                            f'--select "{first}+"')
    return manifest


def outdated_behind(lake: Lake, manifest: Manifest) -> list[tuple[str, str]]:
    """Why a run would now make an artefact from something else: (artefact to make again, a sentence), furthest first."""
    return causes_of(manifest.name.rpartition("/")[2], stale_inputs(_behind(lake, manifest)))


def warm_start_parent(registry: Registry, kind: Kind, name: str, made_from: Iterable[Manifest]) -> Manifest | None:
    """The artefact to continue from: the current version, or its own parent if the current version already used these inputs.

    So the same inputs always give the same artefact. None if there is no version yet.
    """
    if not registry.exists(kind, name):
        return None
    current = registry.current(kind, name)
    taken = {(item.kind, item.name): item for item in current.inputs}
    if not {manifest.digest for manifest in made_from} <= {item.digest for item in taken.values()}:
        return current
    before = taken.get((kind, f"{registry.workload}/{name}"))
    return registry.version(kind, name, before.version) if before else None


def step_of(artefact: str) -> str:
    """The step of the graph that makes an artefact: its name, except for releases."""
    return "release_candidate" if artefact == "release" else artefact


def _behind(lake: Lake, manifest: Manifest) -> dict[str, Manifest]:
    """A manifest and the current manifests of all its ancestors, by the last part of their name."""
    found: dict[tuple[str, str], Manifest] = {(manifest.kind, manifest.name): manifest}
    waiting = [manifest]
    while waiting:
        for item in waiting.pop().inputs:
            if item.kind in ARTEFACTS and (item.kind, item.name) not in found:
                current = _pointed_to(lake.artefacts(item.kind) / item.name / "current.json")
                if current is not None:
                    found[item.kind, item.name] = current
                    waiting.append(current)
    return {name.rpartition("/")[2]: each for (_, name), each in found.items()}


def _pointed_to(pointer: Path) -> Manifest | None:
    """The manifest of the version that a pointer names; None if there is none or it cannot be read."""
    try:
        return read_manifest(pointer.parent / json.loads(pointer.read_text())["version"])
    except (OSError, ValueError, KeyError, TypeError, ManifestError):
        return None
