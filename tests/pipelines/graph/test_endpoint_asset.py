"""The endpoint's asset: it serves what was approved, and by itself nothing that a person took back."""

import dagster as dg
import pytest

from assets.release import endpoint
from resources.artefacts.registry import Registry
from resources.catalog.catalog import query
from resources.endpoints.approvals import record_approval, roll_back, withdraw
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.releases.gate_result import GateResult
from resources.releases.release import ReleaseError, ReleaseSettings
from resources.workshop.workshop import Workshop

ANA = Actor("ana", "MILLRACE_USER", "read 20 answers")


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


def run(lake, approval):
    """One run of the asset; the champion after it."""
    workshop = Workshop(Registry(lake, "tutor"), None, threads=1)
    done = dg.materialize([endpoint], resources={"workshop": workshop, "release_settings": ReleaseSettings(approval=approval)})
    assert done.success
    return Endpoint(lake, "tutor").read().champion


def test_a_candidate_waits_for_a_person_whose_reason_goes_with_the_move(lake, make_release):
    release = make_release(lake, 1)
    assert run(lake, "person") is None
    record_approval(lake, release, ANA)
    assert run(lake, "person") == release.name
    expected = [{"action": action, "who": "ana", "reason": "read 20 answers"} for action in ("approved", "promoted")]
    assert query(lake, "select action, who, reason from approvals").to_pylist() == expected


def test_automatic_approval_serves_what_nobody_decided_on_and_nothing_that_was_taken_back(lake, make_release):
    first = make_release(lake, 1)
    assert run(lake, "automatic") == first.name
    second = make_release(lake, 2)
    assert run(lake, "automatic") == second.name
    roll_back(lake, first, ANA)
    assert run(lake, "automatic") == first.name
    third = make_release(lake, 3)
    withdraw(lake, third, ANA)
    assert run(lake, "automatic") == first.name
    found = query(lake, "select who, identity_from from approvals where action = 'approved'").to_pylist()
    assert found == [{"who": "recipe: approval automatic", "identity_from": "recipe"}] * 2


def test_automatic_approval_leaves_to_a_person_what_too_few_items_cannot_tell(lake, make_release):
    gate = GateResult(name="accuracy_kept", wanted=0.99, measured=0.76, low=0.48, high=1.04, passed=True, judged_by="high")
    release = make_release(lake, 1, gates=[gate])
    assert run(lake, "automatic") is None
    record_approval(lake, release, ANA)
    assert run(lake, "automatic") == release.name


def test_an_approved_release_whose_file_was_changed_is_not_served(lake, make_release):
    release = make_release(lake, 1)
    record_approval(lake, release, ANA)
    (release / "serve-vllm.sh").write_text("echo other weights\n")
    with pytest.raises(ReleaseError, match="not those the release was made from"):
        run(lake, "person")
    assert Endpoint(lake, "tutor").read().champion is None
