"""The sensor `decide`: asks once for the run of a decision, costs nothing where nothing changed, and says what keeps it."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pytest

from pipelines.contract.recipe import load_recipe
from pipelines.graph import decide_sensor as deciding
from pipelines.graph.decide_sensor import DECISION_TAG, KEPT_TAG, run_request, unchanged_models
from pipelines.graph.recipe_graph import definitions
from resources.deciding.costs import work_of
from resources.deciding.decisions import Decisions
from tests.resources.deciding.examples import RECIPE
from tests.resources.deciding.small_lake import log_day

NOW = datetime(2026, 6, 5, 9, tzinfo=UTC)


def tick(lake, recipe, instance, cursor=None, now=NOW, **settings):
    decide = recipe.automation.decide.model_copy(update=settings)
    return deciding.tick(lake, replace(recipe.facts, decide=decide), instance, cursor, now)


def test_a_new_day_asks_for_one_run_and_a_lost_cursor_asks_for_the_same(lake, recipe, instance):
    log_day(lake, date(2026, 6, 4), 400)
    [request] = tick(lake, recipe, instance).run_requests
    [decision] = Decisions(lake, "shop").all()
    assert request.run_key == request.tags[DECISION_TAG] == decision.decision_id and request.job_name == "train"
    assert "400 rows" in request.tags["millrace/why"]
    [again] = tick(lake, recipe, instance).run_requests  # the daemon was killed before it started the run
    assert again.run_key == request.run_key and again.asset_selection == request.asset_selection
    assert len(Decisions(lake, "shop").all()) == 1


def test_a_run_that_is_there_is_not_asked_for_again_and_its_end_is_settled(lake, recipe, instance):
    log_day(lake, date(2026, 6, 4), 400)
    found = tick(lake, recipe, instance)
    with_tag = {DECISION_TAG: found.run_requests[0].run_key}
    run = dg.DagsterRun(job_name="train", tags=with_tag, status=dg.DagsterRunStatus.NOT_STARTED)
    instance.add_run(run)
    second = tick(lake, recipe, instance, found.cursor)
    assert [each.run_key for each in second.run_requests] == [found.run_requests[0].run_key]  # Dagster knows the key
    instance.report_run_failed(run)
    tick(lake, recipe, instance, second.cursor)
    [decision] = Decisions(lake, "shop").all()
    assert (decision.outcome, decision.run_id) == ("failed", run.run_id)


def test_a_killed_run_that_the_daemon_starts_again_is_still_at_work(lake, recipe, instance, monkeypatch):
    log_day(lake, date(2026, 6, 4), 400)
    found = tick(lake, recipe, instance)
    tags = {DECISION_TAG: found.run_requests[0].run_key}
    run = dg.DagsterRun(job_name="train", tags=tags, status=dg.DagsterRunStatus.STARTED)
    instance.add_run(run)
    instance.report_run_failed(run)
    instance.add_run_tags(run.run_id, {"dagster/will_retry": "true"})
    tick(lake, recipe, instance, found.cursor)
    assert [each.outcome for each in Decisions(lake, "shop").all()] == ["running"]
    monkeypatch.setattr(deciding, "STARTED_AGAIN_S", 0.0)
    tick(lake, recipe, instance, found.cursor)
    assert [each.outcome for each in Decisions(lake, "shop").all()] == ["failed"]


def test_two_daemons_decide_once(lake, recipe, instance, monkeypatch):
    log_day(lake, date(2026, 6, 4), 400)
    both = []
    original = Decisions.record

    def record(self, decision):  # the other daemon is faster, each time
        both.append(original(self, decision))
        return original(self, decision)

    monkeypatch.setattr(Decisions, "record", record)
    assert not tick(lake, recipe, instance).run_requests
    assert both == [True] and len(Decisions(lake, "shop").all()) == 1


def test_a_machine_with_a_history_of_its_own_does_not_start_the_run_of_another_ones_decision(
    lake, recipe, instance, monkeypatch
):
    log_day(lake, date(2026, 6, 4), 400)
    monkeypatch.setattr(deciding, "_history", lambda lake, instance: "a")
    [request] = tick(lake, recipe, instance).run_requests
    assert [each.run_key for each in tick(lake, recipe, instance).run_requests] == [request.run_key]
    with dg.DagsterInstance.ephemeral() as other:
        monkeypatch.setattr(deciding, "_history", lambda lake, instance: "b")
        assert not tick(lake, recipe, other).run_requests
        [taken] = tick(lake, recipe, other, now=NOW + timedelta(days=2)).run_requests  # machine a is lost
        assert taken.run_key == request.run_key


def test_an_idle_tick_does_not_look_into_the_lake(lake, recipe, instance, monkeypatch):
    first = tick(lake, recipe, instance)
    assert not first.run_requests
    monkeypatch.setattr(deciding, "decide", lambda *_: pytest.fail("nothing changed"))
    again = tick(lake, recipe, instance, first.cursor, NOW + timedelta(hours=1))
    assert again.skip_reason.skip_message == "nothing changed" and again.cursor == first.cursor
    monkeypatch.undo()
    log_day(lake, date(2026, 6, 4), 400)
    assert tick(lake, recipe, instance, again.cursor, NOW + timedelta(hours=2)).run_requests


def test_a_held_cause_is_told_at_every_tick_and_written_once(lake, recipe, instance):
    log_day(lake, date(2026, 6, 4), 400)
    cursor = None
    for minute in range(4):
        found = tick(lake, recipe, instance, cursor, NOW + timedelta(minutes=minute), quiet=["* 9 * * *"])
        assert not found.run_requests
        cursor = found.cursor
    assert [each.action for each in Decisions(lake, "shop").all()] == ["nothing"]
    assert tick(lake, recipe, instance, cursor, NOW + timedelta(hours=1), quiet=["* 9 * * *"]).run_requests


def test_a_decision_whose_run_never_came_waits_for_the_end_of_quiet_hours(lake, recipe, instance):
    log_day(lake, date(2026, 6, 4), 400)
    [request] = tick(lake, recipe, instance, now=NOW - timedelta(hours=1), quiet=["* 9 * * *"]).run_requests
    waits = tick(lake, recipe, instance, now=NOW, quiet=["* 9 * * *"])  # the daemon was killed before it started the run
    assert (
        not waits.run_requests
        and request.run_key in waits.skip_reason.skip_message
        and "quiet" in waits.skip_reason.skip_message
    )
    still = tick(lake, recipe, instance, waits.cursor, NOW + timedelta(minutes=59), quiet=["* 9 * * *"])
    assert not still.run_requests and len(Decisions(lake, "shop").all()) == 1
    [again] = tick(lake, recipe, instance, still.cursor, NOW + timedelta(hours=1), quiet=["* 9 * * *"]).run_requests
    assert again.run_key == request.run_key


def test_a_request_that_set_quiet_hours_aside_is_asked_for_again_in_them(lake, recipe, instance):
    from resources.deciding.requests import Requests, RetrainingRequest
    from resources.endpoints.endpoint_log import Actor

    Requests(lake, "shop").ask(RetrainingRequest.of("shop", Actor("ana", "test", "now"), "full", ["quiet"]), NOW)
    first, again = (tick(lake, recipe, instance, quiet=["* 9 * * *"]).run_requests for _ in range(2))
    assert [each.run_key for each in first] == [each.run_key for each in again] and again


@pytest.mark.parametrize("cursor", ["", "no json", "[]", '{"pulse": 3, "again_at": "noon"}'])
def test_a_cursor_of_another_version_counts_as_none(lake, recipe, instance, cursor):
    log_day(lake, date(2026, 6, 4), 400)
    assert tick(lake, recipe, instance, cursor).run_requests


def test_a_store_that_is_away_is_said_and_tried_again(tmp_path, monkeypatch):
    path = tmp_path / "shop.yaml"
    path.write_text(json.dumps(RECIPE))
    sensor = definitions(path, tmp_path / "lake").get_sensor_def("decide")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING

    def away(*_):
        raise OSError("no route to host")

    monkeypatch.setattr(deciding, "tick", away)
    with dg.DagsterInstance.ephemeral() as instance:
        found = sensor.evaluate_tick(dg.build_sensor_context(instance=instance))
    assert "away" in found.skip_message and not found.run_requests


@pytest.mark.parametrize("action", ["drafter_continued", "drafter_new", "sft_continued", "preference", "full"])
def test_the_run_of_every_action_can_be_started_as_it_is(tmp_path, action):
    """Selection and config are checked by Dagster against the real job."""
    from tests.resources.deciding.examples import decision

    path = tmp_path / "shop.yaml"
    more = {"preference": {}, "datasets": {"preference": {}}} if action == "preference" else {}
    path.write_text(json.dumps(RECIPE | more))
    graph = definitions(path, tmp_path / "lake")
    work = work_of(action, load_recipe(path).facts, widened=True)
    assert ("sft_model" in work.pinned) == (action not in ("sft_continued", "full"))
    request = run_request(decision(action=action), work)
    job = graph.resolve_job_def("train").get_subset(asset_selection=set(request.asset_selection))
    assert dg.validate_run_config(job, request.run_config)
    assert {key.path[-1] for key in job.asset_layer.executable_asset_keys} == set(work.stages)
    run = dg.DagsterRun(job_name="train", tags=request.tags)
    assert unchanged_models(run) == frozenset(work.pinned) and (KEPT_TAG in request.tags) == bool(work.pinned)


def test_the_cron_is_left_to_the_sensor_where_it_decides(tmp_path):
    for enabled, status in ((True, dg.DefaultScheduleStatus.STOPPED), (False, dg.DefaultScheduleStatus.RUNNING)):
        path = tmp_path / "shop.yaml"
        path.write_text(json.dumps(RECIPE | {"automation": {"retrain": {"enabled": True}, "decide": {"enabled": enabled}}}))
        assert definitions(path, tmp_path / "lake").get_schedule_def("retraining").default_status is status
