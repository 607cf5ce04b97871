"""The champion that a new release is compared with: the last one that the endpoint served with another target or drafter.

If target and drafter are themselves the champion's, the champion before it is taken. So a run after an approval compares with
the same release as the run before it, and makes nothing again."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resources.endpoints import Endpoint, EndpointError, EndpointLogError, champions_before
from resources.lake import LakeLayout
from resources.manifests import Manifest, ManifestError, read_manifest
from resources.releases import Part, Release, ReleaseError, read_release

SHAPE = ("hidden_size", "num_hidden_layers", "vocab_size")
"""Keys of a target's config.json that a drafter of it depends on."""


@dataclass(frozen=True)
class Champion:
    """A release, and those of its models that a new release has others of. problem: why it cannot be compared with. no_target,
    no_drafter: why that model is not compared."""

    release: str
    target: Manifest | None = None
    drafter: Manifest | None = None
    problem: str = ""
    no_target: str = ""
    no_drafter: str = ""


def champion_to_beat(lake: LakeLayout, workload: str, target: Manifest, drafter: Manifest | None = None) -> Champion | None:
    """The last champion with another target or another drafter, by their digests; None if there is none. A release without a
    drafter is compared by its target alone."""
    try:
        entries, aliases = Endpoint(lake, workload).seen()
    except (EndpointError, EndpointLogError) as error:
        return Champion("", problem=str(error))
    champions = champions_before(entries)
    if aliases.champion and champions[-1:] != [aliases.champion]:
        champions.append(aliases.champion)
    for version in reversed(champions):
        try:
            release = read_release(lake.artefacts("release") / workload / version)
            if _has(release.target, target) and (drafter is None or _has(release.speculator, drafter)):
                continue
            return _compared(lake, version, release, target, drafter)
        except (ReleaseError, ManifestError) as error:
            return Champion(version, problem=f"the champion's files cannot be read: {error}")
    return None


def _compared(lake: LakeLayout, version: str, release: Release, target: Manifest, drafter: Manifest | None) -> Champion:
    """Raises ManifestError where files of its models are gone."""
    same_target = _has(release.target, target)
    no_drafter = next(_no_drafter(lake, release, target, drafter), "")
    parts = {"target": None if same_target else release.target, "drafter": None if no_drafter else release.speculator}
    models: dict[str, Manifest] = {}
    for name, part in parts.items():
        if part is not None:
            models[name] = read_manifest(lake.root / part.path)
            if not _has(part, models[name]):
                return Champion(version, problem=f"{part.path} is no longer the model that release {version} serves")
    no_target = "the champion has the same target" if same_target else ""
    return Champion(version, models.get("target"), models.get("drafter"), no_target=no_target, no_drafter=no_drafter)


def _no_drafter(lake: LakeLayout, release: Release, target: Manifest, drafter: Manifest | None) -> Iterator[str]:
    """Why the champion's drafter cannot be compared with the new one on the new target."""
    if drafter is None:
        yield "the release has no drafter"
    elif release.speculator is None:
        yield "the champion has no drafter"
    elif _has(release.speculator, drafter):
        yield "the champion has the same drafter"
    elif _shape(lake.root / release.target.path) != _shape(lake.artefacts("model") / target.name / target.version):
        yield "the champion's drafter is for a target of another shape"


def _shape(model: Path) -> tuple[Any, ...]:
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config") or config
    except (OSError, ValueError, AttributeError):
        return ()
    return tuple(config.get(name) for name in SHAPE)


def _has(part: Part | None, model: Manifest) -> bool:
    return part is not None and part.digest == model.digest
