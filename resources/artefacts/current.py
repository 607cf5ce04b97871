"""The current artefacts of a workload, and which of them were made from outdated inputs. Nothing is written.

    stale = stale_inputs(current_manifests(lake, "math-tutor"))    # name -> [StaleInput(...)]; only stale artefacts are in it

An input that is an artefact is compared by digest: another version with the same content is not a change. An artefact whose
parent is stale is stale itself. Table slices and external files are compared if the caller gives their digests (`digest_of`).
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from resources.artefacts.registry import Registry
from resources.lake import LakeLayout
from resources.manifests import Input, Kind, Manifest, ManifestError, read_manifest


def current_manifests(lake: LakeLayout, workload: str) -> dict[str, Manifest]:
    """The current artefacts of a workload, by the last part of their name. One that cannot be read is left out."""
    manifests = {}
    for kind in ARTEFACTS:
        home = lake.artefacts(kind) / workload
        for pointer in [home / "current.json"] if kind == "release" else sorted(home.glob("*/current.json")):
            if (manifest := _pointed_to(pointer)) is not None:
                manifests[manifest.name.rpartition("/")[2]] = manifest
    return manifests


def up_to_date(registry: Registry, kind: Kind, name: str) -> Manifest:
    """The current manifest of an artefact that downstream steps take. Only it and the artefacts behind it are read.

    Raises ManifestError if there is none yet, or if something behind it is no longer current: an artefact made from it would
    use an earlier run's data or weights. The message names the asset to materialize.
    """
    manifest = registry.current(kind, name)
    if causes := outdated_behind(registry.lake, manifest):
        first, why = step_of(causes[0][0]), "; ".join(sentence for _, sentence in causes)
        raise ManifestError(
            f'{manifest.name} {manifest.version} is out of date: {why}. First run: millrace run RECIPE --select "{first}+"'
        )
    return manifest


def outdated_behind(lake: LakeLayout, manifest: Manifest) -> list[tuple[str, str]]:
    """Why a run would now make an artefact from something else: (artefact to make again, a sentence), furthest first."""
    return causes_of(manifest.name.rpartition("/")[2], stale_inputs(_behind(lake, manifest)))


def warm_start_parent(registry: Registry, kind: Kind, name: str, inputs: Iterable[Manifest]) -> Manifest | None:
    """The artefact to continue from: the current version, or its own parent if the current version already used these inputs.

    So the same inputs always give the same artefact. None if there is no version yet.
    """
    if not registry.exists(kind, name):
        return None
    current = registry.current(kind, name)
    taken = {(item.kind, item.name): item for item in current.inputs}
    if not {manifest.digest for manifest in inputs} <= {item.digest for item in taken.values()}:
        return current
    before = taken.get((kind, f"{registry.workload}/{name}"))
    return registry.version(kind, name, before.version) if before else None


def step_of(artefact: str) -> str:
    """The step of the graph that makes an artefact: its name, except for releases."""
    return "release_candidate" if artefact == "release" else artefact


def _behind(lake: LakeLayout, manifest: Manifest) -> dict[str, Manifest]:
    """A manifest and the current manifests of all its ancestors, by the last part of their name."""
    manifests: dict[tuple[str, str], Manifest] = {(manifest.kind, manifest.name): manifest}
    waiting = [manifest]
    while waiting:
        for item in waiting.pop().inputs:
            if item.kind in ARTEFACTS and (item.kind, item.name) not in manifests:
                current = _pointed_to(lake.artefacts(item.kind) / item.name / "current.json")
                if current is not None:
                    manifests[item.kind, item.name] = current
                    waiting.append(current)
    return {name.rpartition("/")[2]: each for (_, name), each in manifests.items()}


def _pointed_to(pointer: Path) -> Manifest | None:
    """The manifest of the version that a pointer names; None if there is none or it cannot be read."""
    try:
        return read_manifest(pointer.parent / json.loads(pointer.read_text())["version"])
    except (OSError, ValueError, KeyError, TypeError, ManifestError):
        return None


ARTEFACTS = ("dataset", "model", "release")

DigestOf = Callable[[Manifest, Input], str | None]
"""The current digest of an input that is not an artefact; None if it is unknown."""


@dataclass(frozen=True)
class StaleInput:
    """An outdated input of an artefact: as the manifest names it, and the current one."""

    kind: str
    name: str
    version: str
    digest: str
    reason: Literal["changed", "gone", "stale"]
    """`changed` (the current version has another digest), `gone` (there is no current version) or `stale` (it is the current
    version, but one of its own inputs is outdated)."""
    current_version: str = ""
    current_digest: str = ""

    def __str__(self) -> str:
        name = self.name.rpartition("/")[2]
        if self.reason == "stale":
            return f"{name} {self.version} is stale itself"
        used = self.version or self.digest[:12]
        if self.reason == "gone":
            return f"made from {name} {used}, which has no current version"
        if self.version and self.version == self.current_version:
            return f"made from {name} {used}, of which rows were erased since"
        return f"made from {name} {used}, current is {self.current_version or self.current_digest[:12]}"


def stale_inputs(
    manifests: Mapping[str, Manifest], digest_of: DigestOf | None = None, outdated: Collection[str] = ()
) -> dict[str, list[StaleInput]]:
    """The inputs that are not current, by artefact. Artefacts whose inputs are all current are left out.

    manifests: the current artefacts of one workload, by the last part of their name. outdated: names of artefacts that are
    outdated for another reason, such as changed settings; what was made from them is outdated too.
    """
    known: dict[tuple[str, str], Manifest] = {(each.kind, each.name): each for each in manifests.values()}
    outdated_inputs: dict[tuple[str, str], list[StaleInput]] = {}

    def look(manifest: Manifest) -> list[StaleInput]:
        key = (manifest.kind, manifest.name)
        if key not in outdated_inputs:
            outdated_inputs[key] = []  # two artefacts that name each other: stop here
            # an earlier version of the same artefact is its warm-start parent, which need not be current
            others = [item for item in manifest.inputs if (item.kind, item.name) != key]
            outdated_inputs[key] = [stale for item in others if (stale := compare(manifest, item)) is not None]
        return outdated_inputs[key]

    def compare(manifest: Manifest, item: Input) -> StaleInput | None:
        if item.pinned:
            return None
        named = {"kind": item.kind, "name": item.name, "version": item.version, "digest": item.digest}
        if item.kind not in ARTEFACTS:
            now = digest_of(manifest, item) if digest_of else None
            if now is None or now == item.digest:
                return None
            return StaleInput(**named, reason="changed", current_digest=now)
        current = known.get((item.kind, item.name))
        if current is None:
            return StaleInput(**named, reason="gone")
        standing = {"current_version": current.version, "current_digest": current.digest}
        if current.digest != item.digest:
            return StaleInput(**named, **standing, reason="changed")
        if item.taken_as_is:
            return None
        is_stale = bool(look(current)) or current.name.rpartition("/")[2] in outdated
        return StaleInput(**named, **standing, reason="stale") if is_stale else None

    return {name: stale for name, manifest in manifests.items() if (stale := look(manifest))}


def causes_of(name: str, stale: Mapping[str, list[StaleInput]]) -> list[tuple[str, str]]:
    """Why an artefact is out of date, at the root: (artefact to make again, a sentence that says why), furthest first.

    stale: what `stale_inputs` returns. Empty if the artefact is up to date.
    """
    causes: dict[tuple[str, str], None] = {}

    def look(artefact: str, seen: frozenset[str]) -> None:
        items = stale.get(artefact, [])
        for parent in (item.name.rpartition("/")[2] for item in items if item.reason == "stale"):
            if parent not in seen:
                look(parent, seen | {parent})
        for item in items:
            if item.reason != "stale":
                causes[artefact, f"{artefact} was {item}"] = None

    look(name, frozenset({name}))
    return list(causes)
