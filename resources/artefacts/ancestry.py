"""The artefacts behind artefacts, by their manifests.

    for item, manifest in behind(lake, [target, drafter]):       # manifest: None where the lake has none any more
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from resources.artefacts.manifest import Input, Manifest, ManifestError, read_manifest
from resources.artefacts.side_lake import home_of
from resources.lake import Lake


def behind(lake: Lake, manifests: Iterable[Manifest]) -> Iterator[tuple[Input, Manifest | None]]:
    """Every dataset, model and release that these were made from, directly or not, once each; not the given ones."""
    given = list(manifests)
    seen = {(manifest.kind, manifest.name, manifest.version) for manifest in given}
    waiting = [item for manifest in given for item in manifest.inputs]
    while waiting:
        item = waiting.pop()
        if item.kind in ("table", "external") or (item.kind, item.name, item.version) in seen:
            continue
        seen.add((item.kind, item.name, item.version))
        try:
            manifest = read_manifest(home_of(lake, item.kind, item.name) / item.version)
        except ManifestError:
            yield item, None
            continue
        waiting += manifest.inputs
        yield item, manifest
