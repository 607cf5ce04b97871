"""A signed release: what was changed, added, left out or put in its place is refused by name, in the lake and in a package."""

import importlib.util
import json
import shutil
import subprocess
import sys
import tarfile
from datetime import UTC, date, datetime

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.small_adapter import small_adapter
from resources.endpoints.approvals import approvals_of, recheck, record_approval
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import describe_files, files_digest, read_manifest
from resources.releases.release import ReleaseError, ReleasePolicy, ReleaseRef
from resources.releasing.attestations import attest
from resources.releasing.push import package
from resources.signing.keys import KeyProblemError, signing_key, trusted_keys
from resources.signing.release_signature import (
    IN_TOTO,
    EnvelopeError,
    SignatureRefusedError,
    check_signature,
    open_envelope,
    seal_envelope,
)
from tests.reports import process_report

ANN, BOB = Actor("ann", "MILLRACE_USER"), Actor("bob", "MILLRACE_USER")
TODAY = date(2026, 11, 25)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Key pairs: NAME.pub in a folder, private/NAME.pem."""
    home = tmp_path_factory.mktemp("keys")
    (home / "private").mkdir()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    for name in ("release", "ann", "bob", "other"):
        private = ec.generate_private_key(ec.SECP384R1() if name == "bob" else ec.SECP256R1())
        (home / "private" / f"{name}.pem").write_bytes(private.private_bytes(pem, form, serialization.NoEncryption()))
        public = private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        (home / f"{name}.pub").write_bytes(public)
    return home


@pytest.fixture
def key(keys, monkeypatch):
    """Makes a key the one that signs: key("ann")."""

    def use(name):
        monkeypatch.setenv("MILLRACE_SIGNING_KEY", str(keys / "private" / f"{name}.pem"))
        return signing_key()

    return use


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


@pytest.fixture
def signed(lake, make_release, key):
    directory = make_release(lake, 1, drafts=True)
    attest(lake, directory, key("release"))
    return directory


def test_the_signature_holds_and_names_its_key(lake, signed, keys):
    assert check_signature(lake, signed, trusted_keys(keys), TODAY).name == "release"
    assert read_manifest(signed).digest == files_digest(describe_files(signed)), "signatures are not part of the artefact"
    assert not list(lake.root.glob(".signing-*"))


CHANGES = {
    "weights": ("models/tutor/sft_model/*/model.safetensors", "model.safetensors changed"),
    "drafter": ("models/tutor/speculator/*/model.safetensors", "model.safetensors changed"),
    "tokenizer": ("models/tutor/sft_model/*/tokenizer.json", "tokenizer.json changed"),
    "template": ("models/tutor/sft_model/*/chat_template.jinja", "chat_template.jinja changed"),
    "config": ("models/tutor/sft_model/*/config.json", "config.json changed"),
    "model's manifest": ("models/tutor/sft_model/*/manifest.json", "manifest.json changed"),
    "manifest": ("releases/tutor/*/manifest.json", "manifest.json changed"),
    "release": ("releases/tutor/*/release.json", "release.json changed"),
    "script": ("releases/tutor/*/serve-vllm.sh", "serve-vllm.sh changed"),
    "bill of materials": ("releases/tutor/*/bom.cdx.json", "bom.cdx.json changed"),
    "provenance": ("releases/tutor/*/provenance.json", "provenance.json changed"),
}


def flip(path):
    """Changes one bit in the middle of a file; of JSON text, in a digit, so that it stays readable."""
    content = bytearray(path.read_bytes())
    at = next((at for at in range(len(content) // 2, len(content)) if chr(content[at]).isdigit()), len(content) // 2)
    content[at] ^= 1
    path.write_bytes(content)


def only(found):
    found = list(found)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("what", CHANGES)
def test_one_changed_bit_is_refused_by_name_in_the_lake(lake, signed, keys, what):
    pattern, said = CHANGES[what]
    flip(only(lake.root.glob(pattern)))
    with pytest.raises((SignatureRefusedError, ReleaseError), match=said.replace(".", r"\.")):
        check_signature(lake, signed, trusted_keys(keys), TODAY)


def test_added_missing_swapped_and_linked_files_are_refused(lake, signed, keys):
    target = only(lake.root.glob("models/tutor/sft_model/*/"))
    trusted = trusted_keys(keys)
    (target / "extra.py").write_text("import os")
    with pytest.raises(SignatureRefusedError, match=r"sft_model/\w+/extra\.py was added"):
        check_signature(lake, signed, trusted, TODAY)
    (target / "extra.py").unlink()
    tokenizer = (target / "tokenizer.json").read_bytes()
    (target / "tokenizer.json").unlink()
    with pytest.raises(SignatureRefusedError, match=r"tokenizer\.json is missing"):
        check_signature(lake, signed, trusted, TODAY)
    (target.parent / "outside.json").write_bytes(tokenizer)
    (target / "tokenizer.json").symlink_to(target.parent / "outside.json")
    with pytest.raises(ReleaseError, match=r"tokenizer\.json is a link"):
        check_signature(lake, signed, trusted, TODAY)
    (target / "tokenizer.json").unlink()
    (target / "tokenizer.json").write_bytes(tokenizer)
    assert check_signature(lake, signed, trusted, TODAY).name == "release"


def test_an_older_signed_release_in_the_place_of_a_newer_one_is_refused(lake, signed, keys, make_release, key):
    newer = make_release(lake, 2, drafts=True)
    attest(lake, newer, key("release"))
    shutil.rmtree(newer)
    shutil.copytree(signed, newer)
    with pytest.raises(SignatureRefusedError, match="was added"):
        check_signature(lake, newer, trusted_keys(keys), TODAY)


def test_keys_that_are_unknown_expired_or_unreadable(lake, signed, keys, tmp_path, monkeypatch):
    with pytest.raises(SignatureRefusedError, match="is not in"):
        check_signature(lake, signed, trusted_keys(keys / "other.pub"), TODAY)
    listed = tmp_path / "keys.yaml"
    listed.write_text(f"keys:\n- {{name: team, file: {keys / 'release.pub'}, until: 2026-11-24}}\n")
    with pytest.raises(SignatureRefusedError, match="expired on 2026-11-24: check it"):
        check_signature(lake, signed, trusted_keys(listed), TODAY)
    assert check_signature(lake, signed, trusted_keys(listed), date(2026, 11, 24)).name == "team"
    for content, said in (("keys: []", "holds no public key"), ("keys: 3", "keys: Input should be"), ("{", "cannot be read")):
        listed.write_text(content)
        with pytest.raises(KeyProblemError, match=said):
            trusted_keys(listed)
    with pytest.raises(KeyProblemError, match="is a private key"):
        trusted_keys(keys / "private" / "release.pem")
    monkeypatch.setenv("MILLRACE_SIGNING_KEY", str(keys / "release.pub"))
    with pytest.raises(KeyProblemError, match="no private key in PEM form"):
        signing_key()
    monkeypatch.setenv("MILLRACE_SIGNING_KEY", str(tmp_path / "gone.pem"))
    with pytest.raises(KeyProblemError, match="cannot be read"):
        signing_key()
    (lake.root / signed / "model.sig").unlink()
    with pytest.raises(SignatureRefusedError, match="is not signed: sign it with millrace sign"):
        check_signature(lake, signed, trusted_keys(keys), TODAY)


def test_where_keys_are_trusted_an_unsigned_release_is_not_served(lake, make_release, keys, monkeypatch):
    plain, strict = make_release(lake, 1), make_release(lake, 2, policy=ReleasePolicy(signed=True))
    assert recheck(lake, plain) == []
    assert "no key is trusted here" in only(recheck(lake, strict))
    monkeypatch.setenv("MILLRACE_TRUSTED_KEYS", str(keys))
    assert "is not signed" in only(recheck(lake, plain)) and "is not signed" in only(recheck(lake, strict))


def test_two_people_have_to_approve_and_one_twice_is_one(lake, make_release, keys, key, monkeypatch):
    directory = make_release(lake, 1, policy=ReleasePolicy(people=2))
    monkeypatch.setenv("MILLRACE_TRUSTED_KEYS", "")
    for by in (ANN, ANN):
        record_approval(lake, directory, by)
    assert approvals_of(lake, directory).missing == 1 and approvals_of(lake, directory).missing
    record_approval(lake, directory, BOB)
    assert not approvals_of(lake, directory).missing
    attest(lake, directory, key("release"))
    monkeypatch.setenv("MILLRACE_TRUSTED_KEYS", str(keys))
    found = approvals_of(lake, directory)
    assert found.missing == 2 and len(found.refused) == 3 and "it has no signature" in found.refused[0]
    key("ann")
    record_approval(lake, directory, ANN)
    record_approval(lake, directory, BOB)  # another name, the same key
    assert approvals_of(lake, directory).missing == 1
    key("bob")
    record_approval(lake, directory, BOB)
    found = approvals_of(lake, directory)
    assert not found.missing and found.people == ["bob (key ann)", "bob (key bob)"]


def test_a_key_that_signs_releases_need_not_be_one_that_approves(lake, signed, keys, key, tmp_path, monkeypatch):
    listed = tmp_path / "keys.yaml"
    listed.write_text(
        f"keys:\n- {{name: team, file: {keys / 'release.pub'}}}\n- {{name: ann, file: {keys / 'ann.pub'}, approves: true}}\n"
    )
    monkeypatch.setenv("MILLRACE_TRUSTED_KEYS", str(listed))
    key("release")
    record_approval(lake, signed, ANN)
    assert "may sign releases, not approve them" in only(approvals_of(lake, signed).refused)
    key("ann")
    record_approval(lake, signed, ANN)
    assert not approvals_of(lake, signed).missing


def test_the_log_is_verified_where_keys_are_trusted(lake, make_release, keys, key, monkeypatch):
    first, second = make_release(lake, 1), make_release(lake, 2)
    record_approval(lake, first, ANN)
    key("ann")
    record_approval(lake, second, ANN)
    endpoint = Endpoint(lake, "tutor")
    assert endpoint.problems() == []
    monkeypatch.setenv("MILLRACE_TRUSTED_KEYS", str(keys / "ann.pub"))
    assert "entry 1 (approved by ann): it has no signature" in only(endpoint.problems())
    monkeypatch.setenv("MILLRACE_TRUSTED_KEYS", str(keys / "bob.pub"))
    assert "entry 2 (approved by ann): no key in" in endpoint.problems()[1]
    monkeypatch.setenv("MILLRACE_TRUSTED_KEYS", str(keys / "gone.pub"))
    with pytest.raises(KeyProblemError, match="cannot be read"):
        endpoint.problems()


def test_no_approval_at_closed_times(lake, make_release, monkeypatch):
    directory = make_release(lake, 1, policy=ReleasePolicy(closed=["* * * * *"]))
    with pytest.raises(ReleaseError, match=r"cannot be approved now: release\.closed of its recipe has"):
        record_approval(lake, directory, ANN)
    from resources.releases.closed_times import checked, checked_zone, closed_by

    evening = datetime(2026, 11, 25, 17, 30, tzinfo=UTC)
    assert closed_by(["* 18-23 * * *"], "UTC", evening) is None
    assert closed_by(["* 18-23 * * *"], "Europe/Amsterdam", evening) == "* 18-23 * * *"
    for check, value in ((checked, ["18:00"]), (checked_zone, "Mars/Olympus")):
        with pytest.raises(ValueError, match="is no"):
            check(value)


def test_an_envelope_holds_for_its_type_its_content_and_its_key(key, keys):
    text = seal_envelope({"a": 1}, IN_TOTO, key("ann"))
    assert open_envelope(text, IN_TOTO, trusted_keys(keys), TODAY)[0] == {"a": 1}
    envelope = json.loads(text)
    for change in ({"payload": "eyJhIjoyfQ=="}, {"signatures": []}, {"payloadType": "text/plain"}, {"payload": "?"}):
        with pytest.raises(EnvelopeError):
            open_envelope(json.dumps(envelope | change), IN_TOTO, trusted_keys(keys), TODAY)
    with pytest.raises(EnvelopeError, match="no key in"):
        open_envelope(text, IN_TOTO, trusted_keys(keys / "bob.pub"), TODAY)


@pytest.fixture
def packed(lake, signed, key, tmp_path):
    key("ann")
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(signed))
    record_approval(lake, signed, ANN)
    package(lake, signed, tmp_path / "out", "directory")
    return tmp_path / "out"


@pytest.fixture
def verified(keys, monkeypatch, capsys):
    """Runs the package's own verify.py in this process: verified(package, *arguments) is its exit code and output."""

    def run(place, *arguments):
        spec = importlib.util.spec_from_file_location("verify", place / "verify.py")
        program = importlib.util.module_from_spec(spec)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        spec.loader.exec_module(program)
        monkeypatch.setattr(sys, "argv", ["verify.py", str(place), "--key", str(keys / "release.pub"), *arguments])
        code = program.main()
        return code, capsys.readouterr().out

    return run


def test_the_verifier_is_a_program_of_its_own(packed, keys):
    """Started as its user starts it, where no file of millrace can be imported."""
    command = [sys.executable, "-I", str(packed / "verify.py"), "--key", str(keys / "release.pub")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("ok: release "), process_report(done)
    imports = [line for line in (packed / "verify.py").read_text().splitlines() if line.startswith(("import ", "from "))]
    assert imports and "millrace" not in {line.split()[1].split(".")[0] for line in imports}


def test_a_package_verifies_itself_and_refuses_what_changed(packed, verified, keys, signed):
    by_ann = ("--approver", str(keys / "ann.pub"))
    code, said = verified(packed, *by_ann, "--release", signed.name)
    assert code == 0 and "approved by ann (ann)" in said and signed.name in said
    assert (packed / only(packed.glob("releases/tutor/*/serve-vllm.sh"))).stat().st_mode & 0o111
    for arguments, expected in (
        ((*by_ann, "--approvals", "2"), "1 of 2 approvals"),
        (("--approver", str(keys / "bob.pub")), "0 of 1"),
        (("--release", "3f2a91c0d4e5"), "not 3f2a91c0d4e5"),
    ):
        code, said = verified(packed, *arguments)
        assert code == 1 and expected in said, said
    for path, expected in (
        (only(packed.glob("models/tutor/sft_model/*/model.safetensors")), "model.safetensors changed"),
        (packed / "provenance.dsse.json", "provenance.dsse.json"),
        (packed / "model.sig", "model.sig"),
        (packed / "approvals.json", "approvals.json"),
    ):
        before = path.read_bytes()
        flip(path)
        code, said = verified(packed, *by_ann)
        assert code == 1 and expected in said, (path.name, said)
        path.write_bytes(before)
    log = Endpoint(LakeLayout.open(packed.parent / "lake"), "tutor")
    log.promote(ReleaseRef.of(signed), ANN)  # signed by the same key, and no approval
    (packed / "approvals.json").write_text(json.dumps([log.entries()[-1].model_dump(mode="json")]))
    code, said = verified(packed, *by_ann)
    assert code == 1 and "0 of 1 approvals" in said
    (packed / "sitecustomize.py").write_text("")
    code, said = verified(packed, *by_ann)
    assert code == 1 and "sitecustomize.py was added" in said


def test_a_package_knows_how_many_people_its_release_wants(lake, make_release, key, keys, verified, tmp_path):
    directory = make_release(lake, 1, policy=ReleasePolicy(people=2))
    attest(lake, directory, key("release"))
    key("ann")
    record_approval(lake, directory, ANN)
    package(lake, directory, tmp_path / "out", "directory")
    code, said = verified(tmp_path / "out")
    assert code == 1 and "asks for 2 approvals: name their keys" in said
    code, said = verified(tmp_path / "out", "--approver", str(keys / "ann.pub"))
    assert code == 1 and "1 of 2 approvals" in said
    assert verified(tmp_path / "out", "--approvals", "0")[0] == 0
    with pytest.raises(SystemExit):
        verified(tmp_path / "out", "--approver", str(keys / "gone.pub"))


def test_a_package_of_an_adapter_holds_it_and_its_base_and_is_verified(lake, key, verified, tmp_path):
    directory = small_adapter(lake, 1)
    attest(lake, directory, key("release"))
    package(lake, directory, tmp_path / "out", "directory")
    assert not list((tmp_path / "out" / "models" / "tutor").glob("sft_model*"))
    assert verified(tmp_path / "out", "--release", directory.name)[0] == 0
    for pattern in ("*/adapter_model.safetensors", "base_model/*/model.safetensors"):
        [path] = (tmp_path / "out").rglob(pattern)
        before = path.read_bytes()
        path.write_bytes(before + b" ")
        code, said = verified(tmp_path / "out")
        assert code == 1 and f"{path.name} changed" in said
        path.write_bytes(before)


def test_a_tar_and_an_oci_layout_hold_the_same_files(lake, signed, packed, tmp_path):
    assert package(lake, signed, tmp_path / "out.tar", "tar").files == sum(path.is_file() for path in packed.rglob("*"))
    with tarfile.open(tmp_path / "out.tar") as tar:
        tar.extractall(tmp_path / "from_tar", filter="data")
    package(lake, signed, tmp_path / "oci", "oci")
    index = json.loads((tmp_path / "oci" / "index.json").read_text())
    blobs = tmp_path / "oci" / "blobs" / "sha256"
    manifest = json.loads((blobs / index["manifests"][0]["digest"].removeprefix("sha256:")).read_text())
    top = only((tmp_path / "from_tar").iterdir())
    expected, in_tar = (
        {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}
        for place in (packed, top)
    )
    titles = {layer["annotations"]["org.opencontainers.image.title"]: layer["digest"] for layer in manifest["layers"]}
    in_oci = {title: (blobs / digest.removeprefix("sha256:")).read_bytes() for title, digest in titles.items()}
    assert in_tar == in_oci == expected


def test_what_cannot_be_packaged_leaves_nothing(lake, signed, make_release, tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    with pytest.raises(ReleaseError, match="exists already"):
        package(lake, signed, tmp_path / "there", "directory")
    with pytest.raises(ReleaseError, match="is no directory"):
        package(lake, signed, tmp_path / "a" / "b", "directory")
    with pytest.raises(ReleaseError, match="is not signed"):
        package(lake, make_release(lake, 3), tmp_path / "new", "directory")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(100, 99, 1))
    with pytest.raises(ReleaseError, match=r"has 1 byte free and the package needs .*: name a place with more room"):
        package(lake, signed, tmp_path / "new", "tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "there"]


def test_bill_of_materials_and_provenance_are_valid(signed):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
    from google.protobuf.json_format import ParseDict
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import Statement

    bom = (signed / "bom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(bom) is None
    named = {component["name"]: component for component in json.loads(bom)["components"]}
    assert named["tutor/sft_model"]["modelCard"]["quantitativeAnalysis"]["performanceMetrics"] == [
        {"type": "recovery", "value": "0.999"}
    ]
    statement = json.loads((signed / "provenance.json").read_text())
    Statement.copy_from_pb(ParseDict(statement, statement_pb2.Statement())).validate()
    assert len(statement["subject"]) == 8
