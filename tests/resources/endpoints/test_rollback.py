"""Rollback walks back in the history of champions, and never to what was rolled back, unless it is named."""

import pytest

from resources.artefacts.registry import Registry
from resources.endpoints.approvals import approvals_of, approve, roll_back, rollback_target, withdraw
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint, EndpointError
from resources.lake.lake import LakeLayout
from resources.releases.release import ReleaseError, ReleaseRef

ANA = Actor("ana", "MILLRACE_USER")


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


@pytest.fixture
def served(lake, make_release):
    """A, B and C, champions one after the other."""
    directories = [make_release(lake, number) for number in (1, 2, 3)]
    for directory in directories:
        serve(lake, directory)
    return directories


def serve(lake, directory):
    approve(lake, directory, ANA)
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
    assert (
        Endpoint(lake, "tutor").read().champion == c.name
        and not approvals_of(lake, c).missing
        and approvals_of(lake, b).missing
    )
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
    approve(lake, b, ANA)
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
    registry = Registry(lake, "tutor")
    model = registry.draft("model", "sft_model", "sft", ("model_ops/jobs/job.py",), {"steps": 2}, [])
    (model.directory / "config.json").write_text('{"steps": 2}')
    registry.finish(model, {})
    assert [back(lake), back(lake)] == [served[1].name, served[0].name]
    assert roll_back(lake, served[2], ANA).champion == served[2].name and not approvals_of(lake, served[2]).missing


def test_nothing_is_served_yet(lake):
    with pytest.raises(EndpointError, match="no release is served yet"):
        rollback_target(lake, "tutor")
