"""The signatures of a release: over every file of release, target and drafter (or an adapter's base), and over its provenance.

The signature binds paths in the lake, so an older release of the same key cannot take the place of a newer one, and serving
scripts work in a copy as they do in the lake. What an erasure may rewrite later is no part of it: pages that show rows, and the
records beside a manifest, signatures among them."""

import base64
import binascii
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

from model_ops.files import replacement, write_text
from model_ops.jobs import CheckFailed, Misuse
from resources.lake import LakeLayout
from resources.manifests import BESIDE, SCRATCH, SIGNATURE, SIGNED_PROVENANCE, erased
from resources.releases import ReleaseError, read_release
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
    with _laid_out(files, beside) as tree, replacement(signature) as temporary:
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


IN_TOTO = "application/vnd.in-toto+json"


class EnvelopeError(Exception):
    """An envelope is damaged, or no trusted key signed it."""


def seal_envelope(statement: Mapping[str, Any], payload_type: str, key: SigningKey) -> str:
    """The envelope as JSON text."""
    body = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    signature = key.sign(_signed_bytes(payload_type, body))
    envelope = {
        "payload": base64.b64encode(body).decode(),
        "payloadType": payload_type,
        "signatures": [{"keyid": key.id, "sig": base64.b64encode(signature).decode()}],
    }
    return json.dumps(envelope) + "\n"


def open_envelope(text: str, payload_type: str, trusted: TrustedKeys, today: date) -> tuple[dict[str, Any], TrustedKey]:
    """The statement, and the trusted key that signed it. Raises EnvelopeError."""
    try:
        envelope = json.loads(text)
        body = base64.b64decode(envelope["payload"], validate=True)
        signatures = [(item["keyid"], base64.b64decode(item["sig"], validate=True)) for item in envelope["signatures"]]
        statement = json.loads(body)
        kind_of_payload = envelope["payloadType"]
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise EnvelopeError("it is no DSSE envelope") from error
    if kind_of_payload != payload_type:
        raise EnvelopeError(f"it is an envelope of {kind_of_payload}, not of {payload_type}")
    if not isinstance(statement, dict):
        raise EnvelopeError("its payload is no JSON object")
    expired: TrustedKey | None = None
    for id, signature in signatures:
        key = trusted.named(id)
        if key is None or not key.signed(_signed_bytes(payload_type, body), signature):
            continue
        if not key.is_expired(today):
            return statement, key
        expired = key
    if expired is not None:
        raise EnvelopeError(f"its key {expired.name} expired on {expired.until}")
    raise EnvelopeError(f"no key in {trusted.place} signed it as it is")


def _signed_bytes(payload_type: str, body: bytes) -> bytes:
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(body), body)


PROVENANCE = "provenance.json"


def sign_release(lake: LakeLayout, directory: Path, key: SigningKey) -> None:
    """Signs a release and its provenance; earlier signatures are replaced."""
    statement = json.loads((directory / PROVENANCE).read_text(encoding="utf-8"))
    write_text(directory / SIGNED_PROVENANCE, seal_envelope(statement, IN_TOTO, key))
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
        statement, _ = open_envelope((directory / SIGNED_PROVENANCE).read_text(encoding="utf-8"), IN_TOTO, trusted, today)
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
