"""Checks that the parts of a release belong together and are still current.

    disagreements(lake, directory)   # drafter, target and report must belong together; the result never changes
    superseded(lake, directory)      # everything behind the release must be current; the result changes with the next training

The gates hold for what was measured, so the report must be about the released weights, made from the current data and models.
Only manifests are read.
"""

from __future__ import annotations

from pathlib import Path

from resources.artefacts.current import current_manifests
from resources.artefacts.freshness import causes_of, stale_inputs
from resources.artefacts.manifest import Input, Manifest, ManifestError, read_manifest
from resources.lake import Lake


def disagreements(lake: Lake, directory: Path) -> list[str]:
    """One sentence for each part of a release that was not made from, or not measured with, the others."""
    try:
        release = read_manifest(directory)
        parts = {item.name.rpartition("/")[2]: item for item in release.inputs}
        report = _manifest_of(lake, parts.pop("evaluation_report", None))
        drafter = parts.pop("speculator", None)
        made_from = _manifest_of(lake, drafter).inputs if drafter else []
    except ManifestError as error:
        return [str(error)]
    if report is None:
        return [f"release {directory.name} names no evaluation report: nothing says what was measured"]
    measured = {item.digest for item in report.inputs}
    targets = list(parts.values())
    problems = [
        f"the evaluation report {report.version} measured another {part.name.rpartition('/')[2]} than {part.version}, which is "
        "released: materialize evaluation_report and release_candidate again"
        for part in [*targets, *([drafter] if drafter else [])] if part.digest not in measured
    ]
    for target in targets if drafter else []:
        if target.digest not in {item.digest for item in made_from}:
            name = target.name.rpartition("/")[2]
            problems.append(f"the drafter {drafter.version} was trained for another target than {name} {target.version}: "
                            "materialize speculator_dataset and what follows it again")
    return problems


def superseded(lake: Lake, directory: Path) -> list[str]:
    """One sentence for each artefact behind a release that a run would now make from something else."""
    try:
        release = read_manifest(directory)
    except ManifestError as error:
        return [str(error)]
    manifests = {**current_manifests(lake, release.name.split("/")[0]), "release": release}
    return [sentence for _, sentence in causes_of("release", stale_inputs(manifests))]


def _manifest_of(lake: Lake, item: Input | None) -> Manifest | None:
    return read_manifest(lake.artefacts(item.kind) / item.name / item.version) if item else None
