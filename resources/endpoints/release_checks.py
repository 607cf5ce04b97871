"""Checks a release again before an alias moves: a check that stopped one run of the graph does not stop a later one.

The gates hold for what was measured, so the report must be about the released weights, made from the current data and models.
"""

from datetime import date
from pathlib import Path

from resources.artefacts import outdated_behind
from resources.lake import LakeLayout
from resources.manifests import Input, Manifest, ManifestError, file_problems, read_manifest
from resources.releases import (
    ERASED_ROWS,
    GateResult,
    Release,
    ReleaseError,
    adapter_problems,
    erased_rows,
    missed,
    read_release,
)
from resources.signing import TRUSTED_KEYS, SignatureRefusedError, check_signature, trusted_keys


def recheck(lake: LakeLayout, directory: Path) -> list[str]:
    """Checks gates, digests of all files, whether the parts belong together, the signature where keys are trusted, and, for the
    gate on erased rows, what was erased since. Raises KeyProblemError for trusted keys that cannot be read."""
    return recheck_unsigned(lake, directory) + _signature_problems(lake, directory)


def recheck_unsigned(lake: LakeLayout, directory: Path) -> list[str]:
    """The same without the signature."""
    release = read_release(directory)
    problems = [problem for gate in release.gates if (problem := missed(_now(gate, lake, release)))]
    for place, digest in [(directory, None), *((lake.root / part.path, part.digest) for part in release.parts)]:
        try:
            manifest = read_manifest(place)
            lake.mirror.fetch(place)
        except ManifestError as error:
            problems.append(str(error))
            continue
        problems += file_problems(place, manifest)
        if digest is not None and digest != manifest.digest:
            problems.append(f"{place}: its digest is {manifest.digest[:12]}, and the release was made from {digest[:12]}")
    if release.adapter is not None and release.base is not None and not problems:
        problems += adapter_problems(
            directory, release.adapter, read_manifest(lake.root / release.target.path), release.base.digest
        )
    return problems + disagreements(lake, directory)


def disagreements(lake: LakeLayout, directory: Path) -> list[str]:
    """One sentence for each part of a release that was not made from, or not measured with, the others."""
    try:
        release = read_manifest(directory)
        parts = {item.name.rpartition("/")[2]: item for item in release.inputs}
        report = _manifest_of(lake, parts.pop("evaluation_report", None))
        drafter = parts.pop("speculator", None)
        drafter_manifest = _manifest_of(lake, drafter)
        learnt_from = drafter_manifest.inputs if drafter_manifest is not None else []
    except ManifestError as error:
        return [str(error)]
    if report is None:
        return [f"release {directory.name} names no evaluation report: nothing says what was measured"]
    measured = {item.digest for item in report.inputs}
    targets = list(parts.values())
    problems = [
        f"the evaluation report {report.version} measured another {part.name.rpartition('/')[2]} than {part.version}, which is "
        "released: materialize evaluation_report and release_candidate again"
        for part in [*targets, *([drafter] if drafter else [])]
        if part.digest not in measured
    ]
    for target in targets:
        if drafter is not None and target.digest not in {item.digest for item in learnt_from}:
            name = target.name.rpartition("/")[2]
            problems.append(
                f"the drafter {drafter.version} was trained for another target than {name} {target.version}: "
                "materialize speculator_dataset and what follows it again"
            )
    return problems


def superseded(lake: LakeLayout, directory: Path) -> list[str]:
    """One sentence for each artefact behind a release that a run would now make from something else."""
    try:
        return [sentence for _, sentence in outdated_behind(lake, read_manifest(directory))]
    except ManifestError as error:
        return [str(error)]


def _manifest_of(lake: LakeLayout, item: Input | None) -> Manifest | None:
    return read_manifest(lake.artefacts(item.kind) / item.name / item.version) if item else None


def _signature_problems(lake: LakeLayout, directory: Path) -> list[str]:
    """What is wrong with the signature; nothing is checked where no key is trusted and the recipe asks for none."""
    trusted = trusted_keys()
    if trusted is None:
        return (
            [f"the recipe wants a signature, and no key is trusted here: set {TRUSTED_KEYS} to the public keys that may sign"]
            if read_release(directory).policy.signed
            else []
        )
    try:
        check_signature(lake, directory, trusted, date.today())
    except (SignatureRefusedError, ReleaseError) as error:
        return [str(error)]
    return []


def _now(gate: GateResult, lake: LakeLayout, release: Release) -> GateResult:
    """A gate with its measurement as it is now."""
    if gate.name != ERASED_ROWS:
        return gate
    return gate.model_copy(update={"measured": erased_rows(lake, release), "passed": True})
