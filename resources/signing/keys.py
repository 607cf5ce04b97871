"""Keys: one private key that signs, and the public keys that a machine trusts.

    key = signing_key()                  # from MILLRACE_SIGNING_KEY; None where it is not set
    trusted = trusted_keys()             # from MILLRACE_TRUSTED_KEYS; None where it is not set

MILLRACE_SIGNING_KEY is the path of a private key (PEM, ECDSA on P-256, P-384 or P-521), MILLRACE_SIGNING_KEY_PASSWORD its
password. MILLRACE_TRUSTED_KEYS is a public key (PEM), a folder of them, or a YAML file:

    keys:
      - {name: release-team, file: release.pub}
      - {name: alice, file: alice.pub, until: 2027-06-30, approves: true}

A file's paths are relative to it. Trust lies outside the lake: who can write to a lake must not choose who is trusted.

    openssl ecparam -name prime256v1 -genkey -noout -out release.pem && openssl ec -in release.pem -pubout -out release.pub
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import yaml
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import BaseModel, ConfigDict, ValidationError

from model_ops.jobs import Misuse

SIGNING_KEY, PASSWORD, TRUSTED_KEYS = "MILLRACE_SIGNING_KEY", "MILLRACE_SIGNING_KEY_PASSWORD", "MILLRACE_TRUSTED_KEYS"
CURVES: dict[str, Callable[[], hashes.HashAlgorithm]] = {
    "secp256r1": hashes.SHA256,
    "secp384r1": hashes.SHA384,
    "secp521r1": hashes.SHA512,
}
"""Curves that OpenSSF model signing takes, and the hash that goes with each."""


class KeyProblemError(Misuse):
    """A key cannot be read or used."""


@dataclass(frozen=True)
class SigningKey:
    """A private key: `path` is its file."""

    path: Path
    private: ec.EllipticCurvePrivateKey
    password: str | None = None

    @property
    def id(self) -> str:
        return key_id(self.private.public_key())

    def sign(self, content: bytes) -> bytes:
        """An ECDSA signature (DER) of the content, with the hash of the key's curve."""
        return self.private.sign(content, ec.ECDSA(CURVES[self.private.curve.name]()))


@dataclass(frozen=True)
class TrustedKey:
    """A public key."""

    name: str
    path: Path
    public: ec.EllipticCurvePublicKey
    until: date | None = None
    """Last day on which the key is valid."""
    approves: bool = True
    """Whether it may sign approvals; all may, where the file names none."""

    @property
    def id(self) -> str:
        return key_id(self.public)

    def is_expired(self, today: date) -> bool:
        return self.until is not None and today > self.until

    def signed(self, content: bytes, signature: bytes) -> bool:
        """Whether the signature is this key's."""
        try:
            self.public.verify(signature, content, ec.ECDSA(CURVES[self.public.curve.name]()))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class TrustedKeys:
    """The keys that a machine trusts."""

    place: str
    """Where the keys were read, for messages."""
    keys: tuple[TrustedKey, ...]

    def named(self, id: str) -> TrustedKey | None:
        """The key with this id."""
        return next((key for key in self.keys if key.id == id), None)


class _Listed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    file: str
    until: date | None = None
    approves: bool | None = None


class _KeyFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: list[_Listed]


def key_id(public: ec.EllipticCurvePublicKey) -> str:
    """sha256 over the public key's PEM: what OpenSSF model signing writes as the hint of a signature."""
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


def signing_key() -> SigningKey | None:
    """The key that MILLRACE_SIGNING_KEY names. Raises KeyProblemError if it cannot be used."""
    named = os.environ.get(SIGNING_KEY, "").strip()
    if not named:
        return None
    path, password = Path(named).expanduser(), os.environ.get(PASSWORD) or None
    try:
        private = serialization.load_pem_private_key(path.read_bytes(), password.encode() if password else None)
    except OSError as error:
        raise KeyProblemError(f"{SIGNING_KEY} names {path}, which cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyProblemError(
            f"{SIGNING_KEY} names {path}, which is no private key in PEM form, or {PASSWORD} is not its password"
        ) from error
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.curve.name not in CURVES:
        raise KeyProblemError(f"{path} is no ECDSA key on P-256, P-384 or P-521: {_MAKE_ONE}")
    return SigningKey(path, private, password)


def trusted_keys(place: Path | None = None) -> TrustedKeys | None:
    """The keys at `place`, by default those that MILLRACE_TRUSTED_KEYS names; None where neither is given. Raises
    KeyProblemError if a key cannot be read, and if there is none."""
    named = str(place) if place is not None else os.environ.get(TRUSTED_KEYS, "").strip()
    if not named:
        return None
    path = Path(named).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".pub", ".pem"))
        keys = tuple(_public(file.stem, file) for file in files)
    elif path.suffix in (".yaml", ".yml", ".json"):
        keys = _listed(path)
    else:
        keys = (_public(path.stem, path),)
    if not keys:
        raise KeyProblemError(f"{path} holds no public key (.pub or .pem): put the keys there that you trust")
    return TrustedKeys(str(path), keys)


def _listed(path: Path) -> tuple[TrustedKey, ...]:
    try:
        listed = _KeyFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))).keys
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise KeyProblemError(f"{path} cannot be read as YAML") from error
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"]) or "(whole file)"
        raise KeyProblemError(f"{path}: {where}: {problem['msg']}") from error
    any_named = any(item.approves is not None for item in listed)
    return tuple(
        _public(item.name, path.parent / item.file, item.until, bool(item.approves) or not any_named) for item in listed
    )


def _public(name: str, path: Path, until: date | None = None, approves: bool = True) -> TrustedKey:
    try:
        content = path.read_bytes()
        if b"PRIVATE KEY" in content:
            raise KeyProblemError(f"{path} is a private key: trust its public key, and keep the private one where it signs")
        public = serialization.load_pem_public_key(content)
    except OSError as error:
        raise KeyProblemError(f"the public key {path} cannot be read: {error.strerror}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyProblemError(f"{path} is no public key in PEM form") from error
    if not isinstance(public, ec.EllipticCurvePublicKey) or public.curve.name not in CURVES:
        raise KeyProblemError(f"{path} is no ECDSA key on P-256, P-384 or P-521: {_MAKE_ONE}")
    return TrustedKey(name, path, public, until, approves)


_MAKE_ONE = "make one with openssl ecparam -name prime256v1 -genkey -noout"
