"""OpenSSF model signatures over sets of files, by path and digest.

The signature is a Sigstore bundle (https://github.com/sigstore/model-transparency). It is over all files of a folder, so the
files are laid out in a folder of their own first, as hard links where the file system has them.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature

from model_ops.files import replaced
from model_ops.jobs import CheckFailed, Misuse
from resources.signing.keys import SigningKey, TrustedKey, TrustedKeys

MOST_NAMED = 3
_DIFFERENCE = re.compile(
    r"(Hash mismatch for|Extra files found in model|Missing files in model)"
    r" \\?'([^'\\]*)\\?'(?:: ([^\"'\]]*))?"
)
"""What the library says of a file; its message quotes with a backslash where a digest holds a quotation mark."""


class SignatureRefusedError(CheckFailed):
    """Files are not signed as they are, or not by a trusted key."""


class SigningMissingError(Misuse):
    """The package that signs is not installed."""


def sign_files(files: Mapping[str, Path], signature: Path, key: SigningKey, beside: Path) -> None:
    """Signs files, by their paths in the set, and replaces an earlier signature. beside: a folder of their file system."""
    signing, _, hashing = _library()
    with _laid_out(files, beside) as tree, replaced(signature) as temporary:
        config = hashing.Config().use_file_serialization(hashing_algorithm="sha256")
        signer = signing.Config().use_elliptic_key_signer(private_key=key.path, password=key.password)
        signer.set_hashing_config(config.set_ignored_paths(paths=[], ignore_git_paths=False)).sign(tree, temporary)


def check_files(files: Mapping[str, Path], signature: Path, trusted: TrustedKeys, today: date, beside: Path) -> TrustedKey:
    """The trusted key that signed exactly these files. Raises SignatureRefusedError."""
    _, verifying, hashing = _library()
    key = _key_of(signature, trusted)
    if key.is_expired(today):
        raise SignatureRefusedError(
            f"the key {key.name} that signed it expired on {key.until}: check it, and sign it again with a current key"
        )
    with _laid_out(files, beside) as tree:
        config = hashing.Config().use_file_serialization(hashing_algorithm="sha256")
        verifier = verifying.Config().use_elliptic_key_verifier(public_key=key.path)
        verifier.set_hashing_config(config.set_ignored_paths(paths=[], ignore_git_paths=False))
        try:
            verifier.verify(tree, signature)
        except InvalidSignature as error:
            raise SignatureRefusedError(f"{signature.name} was changed after the key {key.name} signed it") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SignatureRefusedError(_differences(str(error), signature.name)) from error
    return key


def lay_out(files: Mapping[str, Path], out: Path, link: bool) -> None:
    """Writes files below `out` at their paths in the set: as copies, or as hard links where the file system has them."""
    for name, path in files.items():
        place = out / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if link:
            with suppress(OSError):  # another file system, or one without hard links
                os.link(path, place)
                continue
        shutil.copy2(path, place)


def _key_of(signature: Path, trusted: TrustedKeys) -> TrustedKey:
    """The trusted key that a signature names."""
    try:
        hint = json.loads(signature.read_text(encoding="utf-8"))["verificationMaterial"]["publicKey"]["hint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SignatureRefusedError(f"{signature.name} is no model signature made with a key") from error
    key = trusted.named(hint)
    if key is None:
        raise SignatureRefusedError(f"it was signed by a key (id {str(hint)[:12]}) that is not in {trusted.place}")
    return key


def _differences(message: str, signature: str) -> str:
    """What is not as it was signed, file by file."""
    said = []
    for kind, what, files in _DIFFERENCE.findall(message):
        if kind == "Hash mismatch for":
            said.append(f"{what} changed")
        else:
            said.append(f"{files} {'was added' if kind.startswith('Extra') else 'is missing'}")
    if not said:
        return f"{signature} cannot be verified"
    more = f" and {len(said) - MOST_NAMED} more" if len(said) > MOST_NAMED else ""
    return f"its files are not those that were signed: {'; '.join(said[:MOST_NAMED])}{more}"


@contextmanager
def _laid_out(files: Mapping[str, Path], beside: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=".signing-", dir=beside) as folder:
        lay_out(files, Path(folder), link=True)
        yield Path(folder)


def _library() -> tuple[Any, Any, Any]:
    try:
        from model_signing import hashing, signing, verifying
    except ImportError as error:
        raise SigningMissingError("signatures need model-signing: pip install 'millrace[signing]'") from error
    return signing, verifying, hashing
