"""Attests a release: writes what says where it is from, and signs it.

    write_attestations(output, lake, release, served, run_id)     # bom.cdx.json, provenance.json: files of the release
    attest(lake, directory, key)                                  # model.sig, provenance.dsse.json: beside its manifest
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from model_ops.atomic_files import write_json
from resources.artefacts.ancestry import behind
from resources.artefacts.licences import licences_of
from resources.artefacts.manifest import Manifest, describe_files
from resources.attesting.bill_of_materials import BOM, bill_of_materials
from resources.attesting.provenance import provenance
from resources.lake import Lake
from resources.releasing.adapter_form import FOLDER
from resources.releasing.recheck import recheck_unsigned
from resources.releasing.release import Release, ReleaseError
from resources.releasing.release_signature import PROVENANCE, sign_release
from resources.signing.keys import SigningKey


def write_attestations(output: Path, lake: Lake, release: Release, served: Sequence[Manifest], run_id: str) -> None:
    """Writes the bill of materials and the provenance of a release that is being made. served: target and drafter, or target
    and the base of its adapter."""
    ancestry = [manifest for _, manifest in behind(lake, served) if manifest is not None]
    licences = licences_of([*served, *ancestry])
    of = release.workload, output.name, served, ancestry, licences
    write_json(output / BOM, bill_of_materials(*of, release.gates))
    write_json(output / PROVENANCE, provenance(*of, run_id, _served_files(output, release, served)))


def _served_files(output: Path, release: Release, served: Sequence[Manifest]) -> dict[str, str]:
    """sha256 of every file that a server loads weights or a tokenizer from, by path in the lake."""
    found = {}
    if release.adapter is not None:
        found = {f"{release.adapter.path}/{file.path}": file.sha256 for file in describe_files(output / FOLDER)}
    loaded = {part.path for part in release.served_parts}
    places = {f"models/{item.name}/{item.version}": item for item in served}
    return found | {f"{place}/{file.path}": file.sha256
                    for place, item in places.items() if place in loaded for file in item.files}


def attest(lake: Lake, directory: Path, key: SigningKey) -> None:
    """Signs a release and its provenance. Raises ReleaseError for one whose files or parts are not those that were made, or
    that has no provenance."""
    if problems := recheck_unsigned(lake, directory):
        raise ReleaseError(f"release {directory.name} is not signed: " + "; ".join(problems))
    if not (directory / PROVENANCE).exists():
        raise ReleaseError(f"release {directory.name} has no {PROVENANCE}: run the recipe again, and sign the "
                           "release that it makes")
    sign_release(lake, directory, key)
