"""The artefacts behind artefacts, by their manifests, with licences and front matter. A manifest is None where it is gone."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from resources.lake import LakeLayout
from resources.manifests import Input, Kind, Manifest, ManifestError, read_manifest


def home_of(lake: LakeLayout, kind: Kind, name: str) -> Path:
    """The folder of an artefact's versions. name: workload/name."""
    return lake.artefacts(kind) / (name.split("/")[0] if kind == "release" else name)


def behind(lake: LakeLayout, manifests: Iterable[Manifest]) -> Iterator[tuple[Input, Manifest | None]]:
    """Every dataset, model and release that these were made from, directly or not, once each; not the given ones."""
    given = list(manifests)
    seen: set[tuple[str, str, str]] = {(manifest.kind, manifest.name, manifest.version) for manifest in given}
    waiting = [item for manifest in given for item in manifest.inputs]
    while waiting:
        item = waiting.pop()
        if item.kind == "table" or item.kind == "external" or (item.kind, item.name, item.version) in seen:
            continue
        seen.add((item.kind, item.name, item.version))
        try:
            manifest = read_manifest(home_of(lake, item.kind, item.name) / item.version)
        except ManifestError:
            yield item, None
            continue
        waiting += manifest.inputs
        yield item, manifest


def licences_of(manifests: Sequence[Manifest]) -> dict[str, str]:
    """The licence of each external input: of a model directory as its README.md states it, of seeds as the recipe does."""
    licences: dict[str, str] = {}
    for manifest in manifests:
        about = manifest.config.get("about")
        stated = about.get("licences") if isinstance(about, dict) else None
        licences |= {name: licence for name, licence in (stated or {}).items() if licence}
        for item in manifest.inputs:
            if item.kind == "external" and item.name not in licences:
                licence = front_matter(Path(item.name)).get("license")
                if isinstance(licence, str) and licence:
                    licences[item.name] = licence
    return licences


def front_matter(directory: Path) -> dict[str, Any]:
    """The YAML between the first two lines `---` of README.md; {} if there is none that can be read."""
    try:
        parts = (directory / "README.md").read_text(encoding="utf-8").split("---", 2)
        stated = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return stated if isinstance(stated, dict) else {}
