"""Checks a release again before an alias moves: a check that stopped one run of the graph does not stop a later one.

    problems = recheck(lake, directory)       # one sentence each; none where it may be served
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

from resources.artefacts.manifest import ManifestError, changed_files, digest_holds, read_manifest
from resources.lake import Lake
from resources.releasing.adapter_form import adapter_problems
from resources.releasing.gate_result import ERASED_ROWS, GateResult, missed
from resources.releasing.parts import disagreements
from resources.releasing.release import Release, ReleaseError, erased_rows, parts_of, read_release
from resources.releasing.release_signature import check_signature
from resources.signing.keys import TRUSTED_KEYS, trusted_keys
from resources.signing.model_signature import SignatureRefusedError


def recheck(lake: Lake, directory: Path) -> list[str]:
    """Checks gates, digests of all files, whether the parts belong together, the signature where keys are trusted, and, for the
    gate on erased rows, what was erased since. Raises KeyProblemError for trusted keys that cannot be read."""
    return recheck_unsigned(lake, directory) + _signature_problems(lake, directory)


def recheck_unsigned(lake: Lake, directory: Path) -> list[str]:
    """The same without the signature."""
    release = read_release(directory)
    problems = [problem for gate in release.gates if (problem := missed(_now(gate, lake, release)))]
    for place, digest in [(directory, None), *((lake.root / part.path, part.digest) for part in parts_of(release))]:
        try:
            manifest = read_manifest(place)
            lake.mirror.fetch(place)
        except ManifestError as error:
            problems.append(str(error))
            continue
        changed = changed_files(place, manifest)
        if changed:
            problems.append(f"{place}: {', '.join(changed[:3])}{' and others' if len(changed) > 3 else ''} changed: its files "
                            "are not those the release was made from")
        if not digest_holds(manifest):
            problems.append(f"{place}: the digest in its manifest does not fit the files it lists: restore it from a copy")
        if digest is not None and digest != manifest.digest:
            problems.append(f"{place}: its digest is {manifest.digest[:12]}, and the release was made from {digest[:12]}")
    if release.adapter is not None and release.base is not None and not problems:
        problems += adapter_problems(directory, release.adapter, read_manifest(lake.root / release.target.path),
                                     release.base.digest)
    return problems + disagreements(lake, directory)


def _signature_problems(lake: Lake, directory: Path) -> list[str]:
    """What is wrong with the signature; nothing is checked where no key is trusted and the recipe asks for none."""
    trusted = trusted_keys()
    if trusted is None:
        return [f"the recipe wants a signature, and no key is trusted here: set {TRUSTED_KEYS} to the public keys that may sign"
                ] if read_release(directory).policy.signed else []
    try:
        check_signature(lake, directory, trusted, date.today())
    except (SignatureRefusedError, ReleaseError) as error:
        return [str(error)]
    return []


def _now(gate: GateResult, lake: Lake, release: Release) -> GateResult:
    """A gate with its measurement as it is now."""
    if gate.name != ERASED_ROWS:
        return gate
    return gate.model_copy(update={"measured": erased_rows(lake, release), "passed": True})
