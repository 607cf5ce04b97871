"""The signatures of a release: over every file of release, target and drafter (or an adapter's base), and over its provenance.

The signature binds paths in the lake, so an older release of the same key cannot take the place of a newer one, and serving
scripts work in a copy as they do in the lake. What an erasure may rewrite later is no part of it: pages that show rows, and the
records beside a manifest, signatures among them.
"""

import json
import os
from datetime import date
from pathlib import Path

from model_ops.files import write_text
from resources.lake import LakeLayout
from resources.manifests import BESIDE, SCRATCH, SIGNATURE, SIGNED_PROVENANCE, erased
from resources.releases import ReleaseError, read_release
from resources.signing.envelope import IN_TOTO, EnvelopeError, opened, sealed
from resources.signing.keys import SigningKey, TrustedKey, TrustedKeys
from resources.signing.model_signature import SignatureRefusedError, check_files, sign_files

PROVENANCE = "provenance.json"


def sign_release(lake: LakeLayout, directory: Path, key: SigningKey) -> None:
    """Signs a release and its provenance; earlier signatures are replaced."""
    statement = json.loads((directory / PROVENANCE).read_text(encoding="utf-8"))
    write_text(directory / SIGNED_PROVENANCE, sealed(statement, IN_TOTO, key))
    sign_files(release_files(lake, directory), directory / SIGNATURE, key, lake.root)


def check_signature(lake: LakeLayout, directory: Path, trusted: TrustedKeys, today: date) -> TrustedKey:
    """The trusted key that signed the release as it is. Raises SignatureRefusedError, and ReleaseError for links."""
    if not is_signed(directory):
        raise SignatureRefusedError(f"release {directory.name} is not signed: sign it with millrace sign {directory.name}")
    try:
        key = check_files(release_files(lake, directory), directory / SIGNATURE, trusted, today, lake.root)
        _check_provenance(directory, trusted, today)
    except SignatureRefusedError as error:
        raise SignatureRefusedError(f"release {directory.name}: {error}") from error
    return key


def is_signed(directory: Path) -> bool:
    """Whether a signature is there; it need not hold."""
    return (directory / SIGNATURE).exists()


def _check_provenance(directory: Path, trusted: TrustedKeys, today: date) -> None:
    """Raises SignatureRefusedError unless the signed provenance is that of the release."""
    try:
        statement, _ = opened((directory / SIGNED_PROVENANCE).read_text(encoding="utf-8"), IN_TOTO, trusted, today)
        why = "it is not that of this release" if statement != json.loads((directory / PROVENANCE).read_bytes()) else ""
    except OSError:
        why = "it is missing"
    except (EnvelopeError, ValueError) as error:
        why = str(error) if isinstance(error, EnvelopeError) else "it cannot be read"
    if why:
        raise SignatureRefusedError(f"{SIGNED_PROVENANCE}: {why}")


def release_files(lake: LakeLayout, directory: Path) -> dict[str, Path]:
    """Every file of the release and of the models that it serves, by path in the lake. Raises ReleaseError for links and for
    parts that are gone."""
    parts = [lake.root / part.path for part in read_release(directory).served_parts]
    files: dict[str, Path] = {}
    for place in (directory, *parts):
        if not place.is_dir():
            raise ReleaseError(
                f"release {directory.name} names {place.relative_to(lake.root)}, which is gone: restore it from a copy"
            )
        lake.mirror.fetch(place)
        files |= _files_of(lake.root, place)
    return files


def _files_of(root: Path, place: Path) -> dict[str, Path]:
    files = {}
    for folder, folders, names in os.walk(place):
        inside = Path(folder).relative_to(place)
        for name in [*folders, *names]:
            if (Path(folder) / name).is_symlink():
                raise ReleaseError(f"{(Path(folder) / name).relative_to(root)} is a link: a release has files only")
        folders[:] = sorted(name for name in folders if name != SCRATCH)
        for name in sorted(names):
            if name.startswith(".") or (inside == Path() and name in {*BESIDE, *erased.PAGES, *erased.WITH_TEXT}):
                continue
            path = Path(folder) / name
            files[path.relative_to(root).as_posix()] = path
    return files
