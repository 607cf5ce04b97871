#!/usr/bin/env python3
"""Verifies this package: that the files of the release are those that were signed, and who approved it. Needs no millrace.

    pip install model-signing pyopenssl
    python verify.py --key release.pub                                # the public key of whoever made the release
    python verify.py --key release.pub --approver alice.pub --approver bob.pub     # and who approved it
    python verify.py --key release.pub --release 3f2a91c0d4e5        # this release and no other, such as an older one

Exit code 0: everything holds. 1: something does not; each problem is one line. 2: the command is wrong.

Get the public keys from the people who own them, not from where you got the package. Somebody who can change the package can
change this file too: compare it with the copy in millrace's source (resources/releasing/verify_package.py), or check the
signature with OpenSSF's own command:

    model_signing verify key --signature model.sig --public_key release.pub --no-ignore-git-paths --ignore-paths model.sig \\
        --ignore-paths provenance.dsse.json --ignore-paths approvals.json --ignore-paths verify.py .
"""

import argparse
import base64
import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

SIGNATURE, PROVENANCE, APPROVALS, THIS = "model.sig", "provenance.dsse.json", "approvals.json", "verify.py"
IN_TOTO = "application/vnd.in-toto+json"
ENTRY = "application/vnd.millrace.endpoint-entry+json"


class VerificationError(Exception):
    """Something does not hold."""


def main() -> int:
    asked = _arguments()
    try:
        from cryptography.hazmat.primitives import hashes  # noqa: F401
        from model_signing import verifying  # noqa: F401
    except ImportError as error:
        print(f"{error.name} is not installed: pip install model-signing pyopenssl", file=sys.stderr)
        return 2
    root = Path(asked.package)
    problems, release = [], None
    checks = (lambda: _no_links(root), lambda: _signature(root, asked.key), lambda: _provenance(root, asked.key))
    for check in checks:
        try:
            check()
        except VerificationError as refused:
            problems.append(str(refused))
    try:
        release = _release(root)
        if asked.release and asked.release not in (release["version"], release["digest"]):
            raise VerificationError(f"this is release {release['version']}, not {asked.release}")
        people = _approvals(root, asked.approver, release)
        wanted = asked.approvals
        if wanted is None:
            asks = release["people"]
            if asks > 1 and not asked.approver:
                raise VerificationError(
                    f"the release asks for {asks} approvals: name their keys with --approver, or give --approvals 0"
                )
            wanted = asks if asked.approver else 0
        if len(people) < wanted:
            raise VerificationError(f"{len(people)} of {wanted} approvals by the keys given: {', '.join(people) or 'none'}")
    except VerificationError as refused:
        problems.append(str(refused))
    for problem in problems:
        print(f"refused: {problem}")
    if problems or release is None:
        return 1
    said = f", approved by {', '.join(people)}" if people else ", approvals not checked (no --approver was given)"
    print(f"ok: release {release['version']} of {release['workload']}, digest {release['digest']}{said}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Verifies a package of a millrace release.")
    parser.add_argument("package", nargs="?", default=str(Path(__file__).resolve().parent), help="default: where this file is")
    parser.add_argument("--key", required=True, type=_key, help="public key (PEM) of whoever signed the release")
    several = "public key of a person who may approve; may be given several times"
    parser.add_argument("--approver", action="append", default=[], type=_key, help=several)
    asked = "how many of them must have approved (default: as many as the release asks for)"
    parser.add_argument("--approvals", type=int, help=asked)
    parser.add_argument("--release", default="", help="version or digest of the only release that is accepted")
    return parser.parse_args()


def _key(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{text} is no file")
    if b"BEGIN PUBLIC KEY" not in path.read_bytes():
        raise argparse.ArgumentTypeError(f"{text} is no public key in PEM form")
    return path


def _no_links(root: Path) -> None:
    """A link could lead to a file outside of the package that changes after the check."""
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            if (path := Path(folder) / name).is_symlink():
                raise VerificationError(f"{path.relative_to(root).as_posix()} is a link, and a package has files only")


def _signature(root: Path, key: Path) -> None:
    """The OpenSSF model signature over every file but those that have signatures of their own."""
    from cryptography.exceptions import InvalidSignature
    from model_signing import hashing, verifying

    beside = [(root / name).resolve() for name in (SIGNATURE, PROVENANCE, APPROVALS, THIS)]
    config = hashing.Config().use_file_serialization(hashing_algorithm="sha256")
    config.set_ignored_paths(paths=beside, ignore_git_paths=False)
    verifier = verifying.Config().use_elliptic_key_verifier(public_key=key).set_hashing_config(config)
    if not (root / SIGNATURE).is_file():
        raise VerificationError(f"{SIGNATURE} is missing")
    try:
        verifier.verify(root.resolve(), root / SIGNATURE)
    except InvalidSignature:
        raise VerificationError(f"{SIGNATURE} was changed after it was made") from None
    except Exception as error:  # the library raises errors of many types for a damaged signature
        raise VerificationError(_differences(str(error))) from None


def _differences(message: str) -> str:
    if "Key mismatch" in message:
        return f"{SIGNATURE} was made with another key than the one given"
    kinds = r"(Hash mismatch for|Extra files found in model|Missing files in model)"
    names = re.findall(kinds + r" \\?'([^'\\]*)\\?'(?:: ([^\"'\]]*))?", message)
    how = {"H": "changed", "E": "was added", "M": "is missing"}
    said = [f"{what if kind[0] == 'H' else files} {how[kind[0]]}" for kind, what, files in names]
    return "; ".join(said) or f"{SIGNATURE} cannot be read as a signature over these files"


def _provenance(root: Path, key: Path) -> None:
    """The signed provenance is the one that the release has, and names the files of its models."""
    statement = _opened(root / PROVENANCE, IN_TOTO, [key])[0]
    paths = list(root.glob("releases/*/*/provenance.json"))
    try:
        same = len(paths) == 1 and json.loads(paths[0].read_bytes()) == statement
    except ValueError:
        same = False
    if not same:
        raise VerificationError(f"{PROVENANCE} is not that of this release")
    for subject in statement["subject"]:
        path = root / subject["name"]
        if not path.is_file() or _sha256(path) != subject["digest"]["sha256"]:
            raise VerificationError(f"{subject['name']} is not the file that the provenance names")


def _release(root: Path) -> dict[str, Any]:
    """Workload, version and digest of the release in the package, and how many people its policy wants to approve it."""
    paths = list(root.glob("releases/*/*/manifest.json"))
    if len(paths) != 1:
        raise VerificationError(f"the package has {len(paths)} releases, not one")
    try:
        manifest = json.loads(paths[0].read_bytes())
        policy = json.loads((paths[0].parent / "release.json").read_bytes()).get("policy", {})
        release = {"workload": paths[0].parent.parent.name, "version": paths[0].parent.name, "digest": manifest["digest"]}
        named = manifest["version"]
        people = int(policy.get("people", 1))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise VerificationError("the release's manifest.json or release.json cannot be read") from None
    if named != release["version"]:
        raise VerificationError(f"the release's folder is named {release['version']}, and its manifest is that of {named}")
    return {**release, "people": people}


def _approvals(root: Path, keys: list[Path], release: dict[str, Any]) -> list[str]:
    """The people whose keys approved this release since it was last withdrawn."""
    if not keys:
        return []
    try:
        entries = json.loads((root / APPROVALS).read_bytes())
        people: dict[str, str] = {}
        for entry in entries:
            if entry["action"] == "withdrawn":
                people = {}
                continue
            if entry["action"] != "approved" or not entry["envelope"]:
                continue
            envelope = json.loads(entry["envelope"])
            statement, key = _opened_text(envelope, ENTRY, keys, APPROVALS)
            if statement != {name: value for name, value in entry.items() if name not in ("envelope", "sha256")}:
                raise VerificationError(f"{APPROVALS}: entry {entry['number']} was changed after it was signed")
            named = {"workload": statement["workload"], "version": statement["release"], "digest": statement["digest"]}
            if key is not None and all(release[name] == value for name, value in named.items()):
                people[key.stem] = statement["by"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise VerificationError(f"{APPROVALS} cannot be read") from None
    return [f"{by} ({key})" for key, by in people.items()]


def _opened(path: Path, payload_type: str, keys: list[Path]) -> tuple[dict, Path]:
    try:
        envelope = json.loads(path.read_bytes())
    except (OSError, ValueError):
        raise VerificationError(f"{path.name} cannot be read") from None
    statement, key = _opened_text(envelope, payload_type, keys, path.name)
    if key is None:
        raise VerificationError(f"{path.name} was changed, or signed with another key than the one given")
    return statement, key


def _opened_text(envelope: dict, payload_type: str, keys: list[Path], name: str) -> tuple[dict, Path | None]:
    """The statement of a DSSE envelope, and which of the keys signed it (None if none did)."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    used: dict[int, Any] = {256: hashes.SHA256, 384: hashes.SHA384, 521: hashes.SHA512}
    try:
        body = base64.b64decode(envelope["payload"], validate=True)
        kind = payload_type.encode()
        signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(body), body)
        statement = json.loads(body)
        if envelope["payloadType"] != payload_type:
            raise VerificationError(f"{name} has an envelope of another type")
        for key in keys:
            public: Any = serialization.load_pem_public_key(key.read_bytes())
            for item in envelope["signatures"]:
                try:
                    public.verify(base64.b64decode(item["sig"], validate=True), signed, ec.ECDSA(used[public.curve.key_size]()))
                except InvalidSignature:
                    continue
                return statement, key
    except (ValueError, KeyError, TypeError, AttributeError):
        raise VerificationError(f"{name} has no readable envelope") from None
    return statement, None


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
