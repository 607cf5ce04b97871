"""A copy of a lake's newest release, signed and approved with keys made for it: for benchmarks about what is signed.

keys = make_keys(home)                                       # keys/ann.pem signs; keys/trusted/ann.pub is trusted
lake, directory = signed_copy(Lake.open(source), home)       # with SIGNING_KEY and TRUSTED_KEYS set to them
"""

import shutil
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from resources.endpoints.approvals import record_approval
from resources.endpoints.endpoint_log import Actor
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import read_manifest
from resources.releasing.attestations import attest
from resources.signing.keys import signing_key


def make_keys(home: Path) -> Path:
    """One key that signs and is trusted, and one that nobody trusts."""
    keys = home / "keys"
    (keys / "trusted").mkdir(parents=True)
    for name in ("ann", "mallory"):
        private = ec.generate_private_key(ec.SECP256R1())
        (keys / f"{name}.pem").write_bytes(
            private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        place = keys / "trusted" if name == "ann" else keys
        (place / f"{name}.pub").write_bytes(
            private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
    return keys


def signed_copy(source: LakeLayout, home: Path, version: str = "") -> tuple[LakeLayout, Path]:
    """A copy of a lake's release in a lake of its own, signed and approved. version: its beginning; "": the newest."""
    shutil.copytree(source.root, home / "lake", symlinks=True, ignore=shutil.ignore_patterns("tables", "dagster", ".mirror"))
    lake = LakeLayout.open(home / "lake")
    found = [path.parent for path in lake.root.glob(f"releases/*/{version}*/manifest.json")]
    made = {path: read_manifest(path).created_at for path in found}
    directory = max(made, key=lambda path: made[path])
    attest(lake, directory, signing_key())
    record_approval(lake, directory, Actor("ann", "MILLRACE_USER"))
    return lake, directory
