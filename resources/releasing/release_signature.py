"""The signatures of a release: over every file of release, target and drafter, and over its provenance.

    sign_release(lake, directory, key)                                 # <release>/model.sig, <release>/provenance.dsse.json
    check_signature(lake, directory, trusted, date.today())           # the key that signed; raises SignatureRefusedError

The signature binds paths in the lake too, so an older release of the same key cannot take the place of a newer one.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

from model_ops.atomic_files import write_text
from resources.artefacts.erased import SIGNATURE, SIGNED_PROVENANCE
from resources.lake import Lake
from resources.releasing.release_tree import release_files
from resources.signing.envelope import IN_TOTO, EnvelopeError, opened, sealed
from resources.signing.keys import SigningKey, TrustedKey, TrustedKeys
from resources.signing.model_signature import SignatureRefusedError, check_files, sign_files

PROVENANCE = "provenance.json"


def sign_release(lake: Lake, directory: Path, key: SigningKey) -> None:
    """Signs a release and its provenance; earlier signatures are replaced."""
    statement = json.loads((directory / PROVENANCE).read_text(encoding="utf-8"))
    write_text(directory / SIGNED_PROVENANCE, sealed(statement, IN_TOTO, key))
    sign_files(release_files(lake, directory), directory / SIGNATURE, key, lake.root)


def check_signature(lake: Lake, directory: Path, trusted: TrustedKeys, today: date) -> TrustedKey:
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
