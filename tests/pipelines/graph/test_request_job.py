"""The job `retrain` keeps a request with the name of the form, which the sensor `decide` starts at its next tick, once; the job
`withdraw_request` takes it back."""

import json
import shutil
import time
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pytest

from pipelines.graph import decide_sensor as deciding
from pipelines.graph import sensors as asking_again
from pipelines.graph.form_jobs import REQUEST_REFUSALS, in_one_sentence, request_jobs
from pipelines.graph.sensors import FIRST_PAUSE_S, LONGEST_PAUSE_S, OBJECTS_TAG, key_of
from resources.deciding.decisions import Decisions
from resources.deciding.requests import Requests
from resources.lake.lake import LakeLayout
from stores.s3 import S3Error
from tests.resources.deciding.examples import RECIPE
from tests.resources.deciding.small_lake import log_day

NOW = datetime(2026, 6, 5, 9, tzinfo=UTC)


def ask(lake, recipe, instance, **form):
    return said_by("retrain", "ask_for_retraining", lake, recipe, instance, form)


def withdraw(lake, recipe, instance, **form):
    return said_by("withdraw_request", "take_back_request", lake, recipe, instance, form)


def said_by(name, op, lake, recipe, instance, form):
    """What the run of the job said, or the sentence with which it failed."""
    [job] = [job for job in request_jobs(recipe, lake.root) if job.name == name]
    done = job.execute_in_process(run_config={"ops": {op: {"config": form}}}, instance=instance, raise_on_error=False)
    if done.success:
        [told] = [event for event in done.all_events if event.event_type_value == "STEP_OUTPUT"]
        return told.event_specific_data.metadata["request"].value
    [failed] = [event for event in done.all_events if event.event_type_value == "STEP_FAILURE"]
    assert failed.event_specific_data.user_failure_data.label == "intentional-failure"
    return failed.event_specific_data.user_failure_data.description


def without_causes(facts):
    return replace(facts, decide=facts.decide.model_copy(update={"causes": []}))


def test_the_next_tick_starts_what_was_asked_for_once_and_before_a_new_day(lake, recipe, instance):
    log_day(lake, date(2026, 6, 4), 400)
    facts = recipe.facts
    idle = deciding.tick(lake, without_causes(facts), instance, None, NOW)
    assert not idle.run_requests
    said = ask(lake, recipe, instance, name="Ana", because="<b>wrong</b> prices", action="drafter_new")
    assert said.endswith("is kept: the sensor `decide` decides it at its next tick, while the daemon runs")
    tick = deciding.tick(lake, facts, instance, idle.cursor, NOW + timedelta(minutes=1))
    [request] = tick.run_requests
    assert request.tags["millrace/cause"] == "request" and request.job_name == "train"
    assert request.tags["millrace/why"] == "Ana asked for a new drafter: <b>wrong</b> prices"
    [decision] = Decisions(lake, "shop").all()
    assert decision.decision_id == request.run_key and decision.evidence["request"]["identity_from"].startswith(
        "Dagster UI, run "
    )
    [again] = deciding.tick(lake, facts, instance, None, NOW + timedelta(minutes=2)).run_requests
    assert again.run_key == request.run_key and len(Decisions(lake, "shop").all()) == 1
    assert not Requests(lake, "shop").waiting([decision])


def test_a_dry_run_keeps_nothing(lake, recipe, instance):
    said = ask(lake, recipe, instance, name="Ana", because="prices", dry_run=True)
    assert said.startswith(
        "dry run, nothing is kept or started. The decision would be: everything that is out of date costs about"
    )
    assert Requests(lake, "shop").all() == []


def test_a_request_is_taken_back_once_and_nothing_is_started(lake, recipe, instance):
    log_day(lake, date(2026, 6, 4), 400)
    ask(lake, recipe, instance, name="Ana", because="prices", action="full")
    [request] = Requests(lake, "shop").all()
    assert "the name is empty" in withdraw(lake, recipe, instance, request=request.request_id)
    assert "shop has no request 123" in withdraw(lake, recipe, instance, request="123", name="Ben")
    said = withdraw(lake, recipe, instance, request=f" {request.request_id} ", name="Ben", because="they are right")
    assert said == f"request {request.request_id} is withdrawn, and nothing will be started for it"
    [decision] = Decisions(lake, "shop").all()
    assert (decision.why, decision.outcome) == ("Ben withdrew the request: they are right", "cancelled")
    assert "was decided already" in withdraw(lake, recipe, instance, request=request.request_id, name="Ben")
    assert not deciding.tick(lake, without_causes(recipe.facts), instance, None, NOW).run_requests


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"because": "x"}, "the name is empty"),
        ({"name": "Ana"}, "the reason is empty"),
        ({"name": "Ana", "because": "x", "action": "all"}, "action is 'all', which does not exist"),
        ({"name": "Ana", "because": "x", "despite": ["gates"]}, "despite is 'gates', which does not exist"),
    ],
)
def test_a_wrong_form_fails_with_one_sentence_and_keeps_nothing(lake, recipe, instance, form, says):
    assert says in ask(lake, recipe, instance, **form)
    assert Requests(lake, "shop").all() == []


def test_a_lake_that_is_away_is_one_sentence(recipe, instance, tmp_path):
    place = LakeLayout.open(tmp_path / "gone")
    shutil.rmtree(place.root)
    assert "no lake at" in ask(place, recipe, instance, name="Ana", because="x")
    with pytest.raises(dg.Failure, match="the bucket is away"), in_one_sentence(REQUEST_REFUSALS):
        raise S3Error("the bucket is away")


def test_the_graph_of_a_recipe_has_the_job_with_every_field(recipe, tmp_path):
    from pipelines.graph.recipe_graph import definitions

    (tmp_path / "shop.yaml").write_text(json.dumps(RECIPE | {"release": {"enabled": False}}))
    defs = definitions(tmp_path / "shop.yaml", tmp_path / "lake")
    shown = defs.resolve_job_def("withdraw_request").run_config["ops"]["take_back_request"]["config"]
    assert shown == {"request": "", "name": "", "because": ""}
    assert {"retrain", "withdraw_request"} <= {job.name for job in defs.get_repository_def().get_all_jobs()}
    shown = defs.resolve_job_def("retrain").run_config["ops"]["ask_for_retraining"]["config"]
    assert shown == {"name": "", "because": "", "action": "full", "despite": [], "dry_run": False}


@dg.op
def good():
    return None


@dg.job
def work():
    good()


@pytest.fixture
def instance():
    with dg.instance_for_test() as made:
        yield made


def run_of(instance, status, **tags):
    run = instance.create_run_for_job(work, tags={OBJECTS_TAG: "abc", **tags})
    instance.report_dagster_event(dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, "work"), run.run_id)
    if status == "failed":
        instance.report_run_failed(run)
    elif status == "cancelled":
        instance.report_run_canceled(run)
    return run.run_id


def later(monkeypatch, seconds):
    now = time.time()
    monkeypatch.setattr(asking_again.time, "time", lambda: now + seconds)


def key(instance):
    return key_of(dg.build_sensor_context(instance=instance), "abc")


def test_objects_that_nobody_asked_for_have_their_digest_as_key(instance):
    assert key(instance) == "abc"
    assert key_of(dg.build_sensor_context(), "abc") == "abc"


def test_a_failed_run_is_asked_for_again_after_pauses_that_grow(instance, monkeypatch):
    for number in range(1, 4):
        run_of(instance, "failed")
        later(monkeypatch, FIRST_PAUSE_S * 2 ** (number - 1) - 5)
        assert key(instance) == "abc"
        later(monkeypatch, FIRST_PAUSE_S * 2 ** (number - 1) + 5)
        assert key(instance) == f"abc-{number}"
        monkeypatch.undo()
    for _ in range(8):
        run_of(instance, "failed")
    later(monkeypatch, LONGEST_PAUSE_S + 5)
    assert key(instance) == "abc-11"


@pytest.mark.parametrize("other", ["at work", "cancelled"])
def test_objects_that_another_run_has_are_left_to_it(instance, monkeypatch, other):
    run_of(instance, "failed")
    run_of(instance, other)
    later(monkeypatch, LONGEST_PAUSE_S + 5)
    assert key(instance) == "abc"


def test_a_run_that_the_daemon_starts_again_is_left_to_the_daemon(instance, monkeypatch):
    instance.add_run_tags(run_of(instance, "failed"), {"dagster/will_retry": "true"})
    later(monkeypatch, LONGEST_PAUSE_S + 5)
    assert key(instance) == "abc"
