"""The OpenSSF model signature of a release: over every file of release, target and drafter, by path and digest.

    sign_release(lake, directory, key)                                     # <release>/model.sig
    check_signature(lake, directory, trusted, date.today())               # the key that signed; raises SignatureRefusedError

The signature is a Sigstore bundle (https://github.com/sigstore/model-transparency). It binds paths too, so an older release of
the same key cannot take the place of a newer one. `model_signing verify key` checks a package without millrace.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature

from model_ops.atomic_files import replaced
from resources.artefacts.erased import SIGNATURE, SIGNED_PROVENANCE
from resources.attesting.envelope import IN_TOTO, EnvelopeError, opened
from resources.attesting.keys import SigningKey, TrustedKey, TrustedKeys
from resources.attesting.provenance import PROVENANCE
from resources.attesting.release_tree import lay_out, release_files
from resources.lake import Lake

MOST_NAMED = 3
_DIFFERENCE = re.compile(r"(Hash mismatch for|Extra files found in model|Missing files in model)"
                         r" \\?'([^'\\]*)\\?'(?:: ([^\"'\]]*))?")
"""What the library says of a file; its message quotes with a backslash where a digest holds a quotation mark."""


class SignatureRefusedError(Exception):
    """A release is not signed as it is, or not by a trusted key."""


class SigningMissingError(Exception):
    """The package that signs is not installed."""


def sign_release(lake: Lake, directory: Path, key: SigningKey) -> Path:
    """Signs a release, and returns the signature's file. An earlier signature is replaced."""
    signing, _, hashing = _library()
    with _laid_out(lake, directory) as tree, replaced(signature_of(directory)) as temporary:
        config = hashing.Config().use_file_serialization(hashing_algorithm="sha256")
        signer = signing.Config().use_elliptic_key_signer(private_key=key.path, password=key.password)
        signer.set_hashing_config(config.set_ignored_paths(paths=[], ignore_git_paths=False)).sign(tree, temporary)
    return signature_of(directory)


def check_signature(lake: Lake, directory: Path, trusted: TrustedKeys, today: date) -> TrustedKey:
    """The trusted key that signed the release as it is. Raises SignatureRefusedError."""
    _, verifying, hashing = _library()
    path = signature_of(directory)
    name = f"release {directory.name}"
    if not path.exists():
        raise SignatureRefusedError(f"{name} is not signed: sign it with millrace sign {directory.name}")
    key = _key_of(path, trusted, name)
    if key.is_expired(today):
        raise SignatureRefusedError(f"{name} was signed by the key {key.name}, which expired on {key.until}: check it, and "
                                    f"sign it again with a current key (millrace sign {directory.name})")
    with _laid_out(lake, directory) as tree:
        config = hashing.Config().use_file_serialization(hashing_algorithm="sha256")
        verifier = verifying.Config().use_elliptic_key_verifier(public_key=key.path)
        verifier.set_hashing_config(config.set_ignored_paths(paths=[], ignore_git_paths=False))
        try:
            verifier.verify(tree, path)
        except InvalidSignature as error:
            raise SignatureRefusedError(f"{name}: {SIGNATURE} was changed after the key {key.name} signed it") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SignatureRefusedError(f"{name}: {_differences(str(error))}") from error
    _check_provenance(directory, trusted, today)
    return key


def signature_of(directory: Path) -> Path:
    """Where the signature of a release lies."""
    return directory / SIGNATURE


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
        raise SignatureRefusedError(f"release {directory.name}: {SIGNED_PROVENANCE}: {why}")


def _key_of(signature: Path, trusted: TrustedKeys, name: str) -> TrustedKey:
    """The trusted key that a signature names."""
    try:
        hint = json.loads(signature.read_text(encoding="utf-8"))["verificationMaterial"]["publicKey"]["hint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SignatureRefusedError(f"{name}: {SIGNATURE} is no model signature made with a key") from error
    key = trusted.named(hint)
    if key is None:
        raise SignatureRefusedError(f"{name} was signed by a key (id {str(hint)[:12]}) that is not in {trusted.place}")
    return key


def _differences(message: str) -> str:
    """What is not as it was signed, file by file."""
    said = []
    for kind, what, files in _DIFFERENCE.findall(message):
        if kind == "Hash mismatch for":
            said.append(f"{what} changed")
        else:
            said.append(f"{files} {'was added' if kind.startswith('Extra') else 'is missing'}")
    if not said:
        return f"{SIGNATURE} cannot be verified"
    more = f" and {len(said) - MOST_NAMED} more" if len(said) > MOST_NAMED else ""
    return f"its files are not those that were signed: {'; '.join(said[:MOST_NAMED])}{more}"


@contextmanager
def _laid_out(lake: Lake, directory: Path) -> Iterator[Path]:
    """The release's files in a folder of their own, as hard links, since a signature is over all files of a folder."""
    files = release_files(lake, directory)
    with tempfile.TemporaryDirectory(prefix=".signing-", dir=lake.root) as folder:
        lay_out(files, Path(folder), link=True)
        yield Path(folder)


def _library() -> tuple[Any, Any, Any]:
    try:
        from model_signing import hashing, signing, verifying
    except ImportError as error:
        raise SigningMissingError("signatures need model-signing: pip install 'millrace[signing]'") from error
    return signing, verifying, hashing
