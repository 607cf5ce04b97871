"""Approvals: entries that add up."""

import json

import pytest

from resources.artefacts.registry import Registry
from resources.endpoints.approvals import approvals_of, approve, approved_by, withdraw
from resources.endpoints.endpoint_log import AUTOMATIC, Actor
from resources.endpoints.endpoints import Endpoint, EndpointError
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import read_manifest
from resources.releases.release import ReleaseError, ReleaseRef

ANA, BO = Actor("ana", "MILLRACE_USER"), Actor("bo", "system account", "wrong prices")


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


@pytest.fixture
def release(lake, make_release):
    return make_release(lake, 1)


def test_a_withdrawn_approval_stays_withdrawn_until_someone_approves_again(lake, release):
    assert not approvals_of(lake, release).decided
    approve(lake, release, ANA)
    assert not approvals_of(lake, release).missing
    withdraw(lake, release, BO)
    assert approvals_of(lake, release).decided and approvals_of(lake, release).missing
    approve(lake, release, ANA)
    assert not approvals_of(lake, release).missing
    assert [entry.action for entry in Endpoint(lake, "tutor").entries()] == ["approved", "withdrawn", "approved"]


def test_an_entry_holds_who_when_digest_reason_and_gates(lake, release):
    approve(lake, release, BO)
    [entry] = Endpoint(lake, "tutor").entries()
    assert (entry.by, entry.identity_from, entry.reason) == ("bo", "system account", "wrong prices")
    assert entry.release == release.name and entry.digest == read_manifest(release).digest
    assert [(gate.name, gate.wanted, gate.measured, gate.passed) for gate in entry.gates] == [("recovery", 0.99, 0.999, True)]
    assert approved_by(lake, release) == BO


def test_a_rolled_back_release_is_decided_and_an_automatic_approval_does_not_speak_over_it(lake, release, make_release):
    newer = make_release(lake, 2)
    for directory in (release, newer):
        approve(lake, directory, AUTOMATIC)
        Endpoint(lake, "tutor").promote(ReleaseRef.of(directory), AUTOMATIC)
    Endpoint(lake, "tutor").roll_back(ReleaseRef.of(release), ANA)
    assert approvals_of(lake, newer).decided and approvals_of(lake, newer).missing and not approvals_of(lake, release).missing


def test_changed_files_are_not_what_was_approved(lake, release):
    approve(lake, release, ANA)
    manifest = release / "manifest.json"
    manifest.write_text(manifest.read_text().replace(read_manifest(release).digest, "0" * 64))
    assert approvals_of(lake, release).missing
    (release / "serve-vllm.sh").write_text("exit 1")
    with pytest.raises(ReleaseError, match=r"serve-vllm.sh changed: its files are not those"):
        approve(lake, release, ANA)


def test_a_superseded_release_gets_no_first_approval_but_the_champion_gets_more(lake, release, make_release):
    serving = make_release(lake, 2)
    approve(lake, serving, ANA)
    Endpoint(lake, "tutor").promote(ReleaseRef.of(serving), ANA)
    model = Registry(lake, "tutor").draft("model", "sft_model", "sft", ("model_ops/jobs/job.py",), {"steps": 2}, [])
    (model.directory / "config.json").write_text('{"steps": 2}')
    Registry(lake, "tutor").finish(model, {})
    with pytest.raises(ReleaseError, match=r"cannot be approved: .*sft_model"):
        approve(lake, release, ANA)
    approve(lake, serving, BO)
    assert approved_by(lake, serving) == BO


def test_a_release_that_nobody_approved_has_no_approver(lake, release):
    with pytest.raises(ReleaseError, match=f"millrace approve {release.name}"):
        approved_by(lake, release)


def test_a_release_whose_report_measured_another_target_is_not_approved(lake, release):
    [report] = (lake.artefacts("dataset") / "tutor" / "evaluation_report").glob("*/manifest.json")
    content = json.loads(report.read_text())
    content["inputs"] = [{**item, "digest": "0" * 64} for item in content["inputs"]]
    report.write_text(json.dumps(content))
    with pytest.raises(ReleaseError, match="measured another"):
        approve(lake, release, ANA)
    assert not approvals_of(lake, release).decided


def test_a_release_that_is_withdrawn_while_it_is_checked_is_not_served(lake, release):
    approve(lake, release, ANA)
    withdraw(lake, release, BO)
    with pytest.raises(EndpointError, match="was withdrawn meanwhile"):
        Endpoint(lake, "tutor").promote(ReleaseRef.of(release), ANA)
    assert Endpoint(lake, "tutor").read().champion is None
