"""The jobs approve, reject and rollback: what the commands do, with the name and the reason of a form, and refusals in one
sentence."""

import json
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import dagster as dg
import pytest
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.storage.tags import CODE_LOCATION_TAG

from assets.release import _form
from pipelines.graph import form_jobs
from pipelines.graph.form_jobs import ApproveForm, RejectForm, RollbackForm
from pipelines.graph.recipe_graph import definitions
from pipelines.keeping.dagster_servers import code_locations
from pipelines.storage.locations import location_name
from resources.catalog.catalog import query
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.launching.local_launcher import origin_of
from resources.manifests.manifest import read_manifest
from resources.releases.release import ReleasePolicy, ReleaseRef

RECIPE = "workload: tutor\nbase_model: tiny\nsources: {gateway: {uri: logs}}\nfirst_day: 2026-06-01\nlast_day: 2026-06-05\n"
STEPS = {"approve": "approve_release", "reject": "reject_release", "rollback": "roll_back_endpoint"}


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


@pytest.fixture
def decide(lake, tmp_path):
    """decide("approve", release=..., name=...): what the run said, or the sentence with which it failed."""
    (tmp_path / "tutor.yaml").write_text(RECIPE)
    graph = definitions(tmp_path / "tutor.yaml", lake.root)

    def decide(job, **form):
        done = graph.resolve_job_def(job).execute_in_process(
            run_config={"ops": {STEPS[job]: {"config": form}}}, instance=dg.DagsterInstance.ephemeral(), raise_on_error=False
        )
        if done.success:
            [told] = [event for event in done.all_events if event.event_type_value == "STEP_OUTPUT"]
            return told.event_specific_data.metadata["decision"].value
        [failed] = [event for event in done.all_events if event.event_type_value == "STEP_FAILURE"]
        assert failed.event_specific_data.user_failure_data.label == "intentional-failure"
        return failed.event_specific_data.user_failure_data.description

    return decide


def champion(lake):
    return Endpoint(lake, "tutor").read().champion


def test_approve_and_roll_back_move_the_alias_with_name_reason_and_run(lake, decide, make_release):
    first, second = make_release(lake, 1), make_release(lake, 2)
    expected = f"champion moved from none to {first.name}"
    assert decide("approve", release=first.name, name="Ana", reason="read 20 answers") == expected
    digest = read_manifest(second).digest
    expected = f"champion moved from {first.name} to {second.name}"
    assert decide("approve", release=second.name[:6], name="Bob", digest=digest[:8]) == expected
    expected = f"champion moved from {second.name} back to {first.name}"
    assert decide("rollback", name="Ana", reason="rude", champion=second.name) == expected
    said = "select action, who, identity_from, reason from approvals where action in ('approved', 'rolled back') order by ts"
    rows = query(lake, said).to_pylist()
    expected = [("approved", "Ana", "read 20 answers"), ("approved", "Bob", None), ("rolled back", "Ana", "rude")]
    assert [(row["action"], row["who"], row["reason"]) for row in rows] == expected
    assert all(row["identity_from"].startswith("Dagster UI, run ") for row in rows)


def test_a_rejected_candidate_stays_away_until_it_is_approved(lake, decide, make_release):
    release = make_release(lake, 1)
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(release))
    expected = f"release {release.name} is rejected; the champion stays"
    assert decide("reject", release=release.name, name="Ana", reason="too long") == expected
    assert Endpoint(lake, "tutor").read().candidate is None and champion(lake) is None


def test_the_form_offers_no_release_that_missed_a_gate(lake, make_release):
    missed, held = make_release(lake, 1, recovery=0.5), make_release(lake, 2)
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(missed))
    assert form_jobs._candidate(lake.root, "tutor") == ""
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(held))
    assert form_jobs._candidate(lake.root, "tutor") == held.name


def test_two_people_are_needed_where_the_recipe_says_so(lake, decide, make_release):
    release = make_release(lake, 1, policy=ReleasePolicy(people=2))
    expected = "approved by Ana; one more person must approve it; no alias moved"
    assert expected in decide("approve", release=release.name, name="Ana")
    assert "one more person" in decide("approve", release=release.name, name="Ana") and champion(lake) is None
    assert decide("approve", release=release.name, name="Bob") == f"champion moved from none to {release.name}"


def test_a_further_alias_names_an_approved_release_only(lake, decide, make_release):
    release = make_release(lake, 1)
    assert "is not approved" in decide("approve", release=release.name, name="Ana", alias="canary")
    decide("approve", release=release.name, name="Ana")
    assert decide("approve", release=release.name, name="Ana", alias="canary") == f"canary names release {release.name}"
    assert Endpoint(lake, "tutor").read().named == {"canary": release.name}


def test_wrong_forms_are_refused_in_one_sentence_and_change_nothing(lake, decide, make_release):
    older, newer = make_release(lake, 1), make_release(lake, 2)
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(newer))
    refused = {
        "the name is empty": decide("approve", release=newer.name, name="  "),
        f"no release is named: give the version of the release; the candidate is {newer.name}": decide("approve", name="Ana"),
        "names no release": decide("approve", release="ffffffffffff", name="Ana"),
        "is only the beginning of release": decide("approve", release=newer.name[:3], name="Ana"),
        f"{newer.name} is a newer candidate": decide("approve", release=older.name, name="Ana"),
        "and you read 'ffffffff'": decide("approve", release=newer.name, name="Ana", digest="ffffffff"),
        "control characters": decide("approve", release=newer.name, name="Ana", reason="one\ntwo"),
        "no release is served yet": decide("rollback", name="Ana"),
        "is the champion, not abc": decide("rollback", name="Ana", champion="abc"),
    }
    for wanted, said in refused.items():
        assert wanted in said and "\n" not in said, said
    assert champion(lake) is None and not [entry for entry in Endpoint(lake, "tutor").entries() if entry.action != "nominated"]
    (newer / "serve-vllm.sh").write_text("echo other weights\n")
    assert "not those the release was made from" in decide("approve", release=newer.name, name="Ana")
    assert champion(lake) is None


@pytest.mark.parametrize("form", [ApproveForm, RejectForm, RollbackForm])
def test_every_field_of_a_form_has_a_description_and_is_shown(form):
    assert all(field.description and not field.is_required() for field in form.model_fields.values())


def test_a_recipe_without_release_has_none_of_the_jobs(tmp_path):
    (tmp_path / "tutor.yaml").write_text(RECIPE + "release: {enabled: false}\n")
    names = {job.name for job in definitions(tmp_path / "tutor.yaml", tmp_path / "lake").get_repository_def().get_all_jobs()}
    assert not names & STEPS.keys() and "train" in names


def test_the_forms_offer_the_release_that_waits(lake, make_release, tmp_path):
    release = make_release(lake, 1)
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(release))
    (tmp_path / "tutor.yaml").write_text(RECIPE)
    graph = definitions(tmp_path / "tutor.yaml", lake.root)
    for job in ("approve", "reject"):
        assert graph.resolve_job_def(job).run_config["ops"][STEPS[job]]["config"]["release"] == release.name


def test_a_releases_page_links_to_the_forms_with_the_release_filled_in():
    context = SimpleNamespace(run=SimpleNamespace(tags={CODE_LOCATION_TAG: "my_bot"}))
    link = _form(context, "approve", SimpleNamespace(version="0a1b2c", digest="d" * 64))
    place, _, asked = link.partition("?config=")
    assert place == "/locations/my_bot/jobs/approve/playground/setup"
    form = json.loads(unquote(asked))["ops"][STEPS["approve"]]["config"]
    assert form["release"] == "0a1b2c" and ApproveForm(**form).digest == "d" * 64
    assert _form(SimpleNamespace(run=SimpleNamespace(tags={})), "approve", SimpleNamespace()) == "/jobs"


def test_a_run_of_the_command_line_has_the_code_location_that_the_ui_loads():
    repository = origin_of(location_name(Path("my-bot.yaml")), "train").repository_origin
    assert repository.repository_name == SINGLETON_REPOSITORY_NAME
    assert repository.code_location_origin.location_name == "my_bot"
    assert code_locations([Path("my-bot.yaml")])[0]["python_module"]["location_name"] == "my_bot"
