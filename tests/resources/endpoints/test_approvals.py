"""Approvals: entries that add up."""

import json

import pytest

from resources.artefacts.registry import Registry
from resources.endpoints import approvals
from resources.endpoints.approvals import (
    approvals_of,
    approved_by,
    disagreements,
    record_approval,
    roll_back,
    rollback_target,
    stale_parts,
    withdraw,
)
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
    record_approval(lake, release, ANA)
    assert not approvals_of(lake, release).missing
    withdraw(lake, release, BO)
    assert approvals_of(lake, release).decided and approvals_of(lake, release).missing
    record_approval(lake, release, ANA)
    assert not approvals_of(lake, release).missing
    assert [entry.action for entry in Endpoint(lake, "tutor").entries()] == ["approved", "withdrawn", "approved"]


def test_a_withdrawal_also_ends_an_approval_that_did_not_count(lake, release, monkeypatch):
    record_approval(lake, release, ANA)
    monkeypatch.setattr(approvals, "trusted_keys", list)  # keys are trusted from now on, and nobody signed with one
    assert approvals_of(lake, release).refused and not approvals_of(lake, release).withdrawn
    withdraw(lake, release, BO)
    assert approvals_of(lake, release).withdrawn and not approvals_of(lake, release).refused


def test_an_entry_holds_who_when_digest_reason_and_gates(lake, release):
    record_approval(lake, release, BO)
    [entry] = Endpoint(lake, "tutor").entries()
    assert (entry.by, entry.identity_from, entry.reason) == ("bo", "system account", "wrong prices")
    assert entry.release == release.name and entry.digest == read_manifest(release).digest
    assert [(gate.name, gate.wanted, gate.measured, gate.passed) for gate in entry.gates] == [("recovery", 0.99, 0.999, True)]
    assert approved_by(lake, release) == BO


def test_a_rolled_back_release_is_decided_and_an_automatic_approval_does_not_speak_over_it(lake, release, make_release):
    newer = make_release(lake, 2)
    for directory in (release, newer):
        record_approval(lake, directory, AUTOMATIC)
        Endpoint(lake, "tutor").promote(ReleaseRef.of(directory), AUTOMATIC)
    Endpoint(lake, "tutor").roll_back(ReleaseRef.of(release), ANA)
    assert approvals_of(lake, newer).decided and approvals_of(lake, newer).missing and not approvals_of(lake, release).missing


def test_changed_files_are_not_what_was_approved(lake, release):
    record_approval(lake, release, ANA)
    manifest = release / "manifest.json"
    manifest.write_text(manifest.read_text().replace(read_manifest(release).digest, "0" * 64))
    assert approvals_of(lake, release).missing and not approvals_of(lake, release).withdrawn
    (release / "serve-vllm.sh").write_text("exit 1")
    with pytest.raises(ReleaseError, match=r"serve-vllm.sh changed: its files are not those"):
        record_approval(lake, release, ANA)


def train_anew(lake):
    model = Registry(lake, "tutor").draft("model", "sft_model", "sft", ("model_ops/jobs/job.py",), {"steps": 2}, [])
    (model.directory / "config.json").write_text('{"steps": 2}')
    Registry(lake, "tutor").finish(model, {})


def test_a_superseded_release_gets_no_first_approval_but_the_champion_gets_more(lake, release, make_release):
    serving = make_release(lake, 2)
    record_approval(lake, serving, ANA)
    Endpoint(lake, "tutor").promote(ReleaseRef.of(serving), ANA)
    train_anew(lake)
    with pytest.raises(ReleaseError, match=r"cannot be approved: .*sft_model"):
        record_approval(lake, release, ANA)
    record_approval(lake, serving, BO)
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
        record_approval(lake, release, ANA)
    assert not approvals_of(lake, release).decided


def test_a_release_that_is_withdrawn_while_it_is_checked_is_not_served(lake, release):
    record_approval(lake, release, ANA)
    withdraw(lake, release, BO)
    with pytest.raises(EndpointError, match="was withdrawn meanwhile"):
        Endpoint(lake, "tutor").promote(ReleaseRef.of(release), ANA)
    assert Endpoint(lake, "tutor").read().champion is None


@pytest.fixture
def registry(tmp_path):
    return Registry(LakeLayout.open(tmp_path / "lake"), "tutor")


def make(registry, kind, name, text, *inputs):
    """An artefact whose one file holds `text` and what it was made from."""
    draft = registry.draft(kind, name, name, ("model_ops/jobs/job.py",), {"text": text}, [item.as_input() for item in inputs])
    (draft.directory / "content.txt").write_text(f"{text} {[item.digest for item in inputs]}")
    return draft.finished or registry.finish(draft, {})


def graph(registry, steps="1", quantized_from=None, reported=None):
    """Everything from sft_model to a release, for one number of training steps. Returns all of it by name."""
    sft = make(registry, "model", "sft_model", steps)
    target = make(registry, "model", "quantized_model", "int8", quantized_from or sft)
    answers = make(registry, "dataset", "speculator_dataset", "answers", target)
    drafter = make(registry, "model", "speculator", "head", target, answers)
    report = make(registry, "dataset", "evaluation_report", "report", sft, reported or target, drafter, answers)
    release = make(registry, "release", "release", "release", target, drafter, report)
    return {"sft": sft, "target": target, "drafter": drafter, "report": report, "release": release}


def found_wrong(registry, made):
    place = registry.directory(made["release"])
    return disagreements(registry.lake, place), stale_parts(registry.lake, place)


def test_a_release_of_one_run_agrees_and_is_current(registry):
    assert found_wrong(registry, graph(registry)) == ([], [])


def test_a_target_made_from_the_model_of_the_run_before_is_refused(registry):
    """What was reported: changed sft.steps, the old model quantized, measured and released."""
    before = graph(registry, steps="1")
    made = graph(registry, steps="2", quantized_from=before["sft"])
    [problem] = found_wrong(registry, made)[1]
    assert problem == (f"quantized_model was made from sft_model {before['sft'].version}, current is {made['sft'].version}")


def test_a_report_about_other_weights_is_refused(registry):
    before = graph(registry, steps="1")
    made = graph(registry, steps="2", reported=before["target"])
    [problem] = found_wrong(registry, made)[0]
    assert f"measured another quantized_model than {made['target'].version}" in problem


def test_a_drafter_of_another_target_is_refused(registry):
    before, made = graph(registry, steps="1"), graph(registry, steps="2")
    report = make(registry, "dataset", "evaluation_report", "both", made["sft"], made["target"], before["drafter"])
    mixed = {"release": make(registry, "release", "release", "mixed", made["target"], before["drafter"], report)}
    [problem] = found_wrong(registry, mixed)[0]
    assert f"the drafter {before['drafter'].version} was trained for another target" in problem


def test_a_release_without_a_report_is_refused(registry):
    target = make(registry, "model", "sft_model", "1")
    made = {"release": make(registry, "release", "release", "bare", target)}
    assert "names no evaluation report" in found_wrong(registry, made)[0][0]


def test_an_older_release_still_agrees_with_itself_though_newer_parts_exist(registry):
    before = graph(registry, steps="1")
    graph(registry, steps="2")
    agreeing, outdated = found_wrong(registry, before)
    assert agreeing == []
    assert any("current is" in problem for problem in outdated)


def test_the_same_content_under_another_version_is_current(registry):
    made = graph(registry)
    draft = registry.draft("model", "sft_model", "sft_model", ("model_ops/jobs/job.py",), {"text": "same bytes"}, [])
    (draft.directory / "content.txt").write_text("1 []")
    again = registry.finish(draft, {})
    assert again.version != made["sft"].version and again.digest == made["sft"].digest
    assert found_wrong(registry, made) == ([], [])


@pytest.fixture
def served(lake, make_release):
    """A, B and C, champions one after the other."""
    directories = [make_release(lake, number) for number in (1, 2, 3)]
    for directory in directories:
        serve(lake, directory)
    return directories


def serve(lake, directory):
    record_approval(lake, directory, ANA)
    Endpoint(lake, "tutor").promote(ReleaseRef.of(directory), ANA)


def back(lake):
    """One rollback without a name; the new champion."""
    target = lake.artefacts("release") / "tutor" / rollback_target(lake, "tutor")
    return roll_back(lake, target, ANA).champion


def test_two_rollbacks_go_further_back_and_do_not_bounce(lake, served):
    a, b, _ = served
    assert [back(lake), back(lake)] == [b.name, a.name]
    with pytest.raises(EndpointError, match="no previous release to roll back to") as raised:
        back(lake)
    assert b.name in str(raised.value) and "--to" in str(raised.value)
    assert [not approvals_of(lake, directory).missing for directory in served] == [True, False, False]


def test_a_release_that_was_rolled_back_comes_back_when_it_is_named_and_is_approved_anew(lake, served):
    a, b, c = served
    back(lake)
    roll_back(lake, c, ANA)
    assert Endpoint(lake, "tutor").read().champion == c.name
    assert not approvals_of(lake, c).missing and approvals_of(lake, b).missing
    assert [entry.action for entry in Endpoint(lake, "tutor").entries()][-2:] == ["approved", "rolled back"]
    assert back(lake) == a.name  # b was rolled back, too


def test_rolling_back_to_an_older_one_leaves_those_between_behind(lake, served):
    a, b, _ = served
    roll_back(lake, a, ANA)
    with pytest.raises(EndpointError, match="no previous release"):
        rollback_target(lake, "tutor")
    serve(lake, b)
    assert back(lake) == a.name


def test_a_withdrawn_release_is_passed_over_and_one_approved_again_is_not(lake, served):
    a, b, _ = served
    withdraw(lake, b, ANA)
    assert rollback_target(lake, "tutor") == a.name
    record_approval(lake, b, ANA)
    assert rollback_target(lake, "tutor") == b.name


def test_a_champion_that_returned_is_rolled_back_like_any_other(lake, served):
    a, b, c = served
    back(lake)
    serve(lake, c)
    assert rollback_target(lake, "tutor") == b.name
    assert [back(lake), back(lake)] == [b.name, a.name]


def test_what_never_served_or_serves_now_cannot_be_rolled_back_to(lake, served, make_release):
    with pytest.raises(EndpointError, match="is the champion already"):
        roll_back(lake, served[2], ANA)
    with pytest.raises(ReleaseError, match="never was the champion"):
        roll_back(lake, make_release(lake, 4), ANA)
    assert Endpoint(lake, "tutor").read().champion == served[2].name


def test_a_target_whose_files_changed_is_refused_and_nothing_moves(lake, served):
    (served[1] / "serve-vllm.sh").write_text("rm -rf /")
    with pytest.raises(ReleaseError, match=r"cannot be served again: .* not those the release was made from"):
        back(lake)
    assert Endpoint(lake, "tutor").read().champion == served[2].name and not approvals_of(lake, served[2]).missing


def test_a_rollback_leads_to_what_a_newer_training_has_superseded(lake, served):
    train_anew(lake)
    assert [back(lake), back(lake)] == [served[1].name, served[0].name]
    assert roll_back(lake, served[2], ANA).champion == served[2].name and not approvals_of(lake, served[2]).missing


def test_nothing_is_served_yet(lake):
    with pytest.raises(EndpointError, match="no release is served yet"):
        rollback_target(lake, "tutor")
