"""The sensor of a recipe with `alerts`: it finds failed runs of its own workload and tells each once."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import dagster as dg
import pytest

from pipelines.graph.recipe_graph import definitions
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.launching.run_history import HOST_TAG, PROCESS_TAG
from resources.monitoring.alerts.tell import tell
from resources.releases.release import ReleaseRef
from tests.resources.monitoring.receivers import Webhook

RECIPE = "workload: tutor\nbase_model: tiny\nsources: {gateway: {uri: logs}}\nfirst_day: 2026-06-01\nlast_day: 2026-06-05\n"
ALERTS = "alerts: {webhook: {url_env: HOOK}, timeout_s: 2}\n"


def sensors_of(tmp_path, more=""):
    (tmp_path / "tutor.yaml").write_text(RECIPE + more)
    graph = definitions(tmp_path / "tutor.yaml", tmp_path / "lake")
    return graph, {sensor.name: sensor for sensor in graph.get_repository_def().sensor_defs}


def test_a_recipe_without_alerts_has_no_such_sensor_and_one_with_them_has_it_on(tmp_path):
    assert "alerts" not in sensors_of(tmp_path)[1]
    assert sensors_of(tmp_path, ALERTS)[1]["alerts"].default_status == dg.DefaultSensorStatus.RUNNING


def failed(key):
    @dg.asset(key=key)
    def broken():
        raise ValueError("what a user said: SECRET")

    return broken


@pytest.mark.filterwarnings("ignore")
def test_a_failed_run_and_a_waiting_release_are_told_once_without_what_users_said(tmp_path, monkeypatch, make_release):
    graph, sensors = sensors_of(tmp_path, ALERTS)
    lake = LakeLayout.open(tmp_path / "lake")
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(release := make_release(lake, 1)))
    with Webhook().listening() as hook, dg.instance_for_test() as instance:
        monkeypatch.setenv("HOOK", hook.url)
        for key in (["tutor", "sft_model"], ["other", "sft_model"]):
            asset = failed(key)
            job = dg.Definitions(assets=[asset], jobs=[dg.define_asset_job("train", [asset])]).resolve_job_def("train")
            job.execute_in_process(instance=instance, raise_on_error=False, asset_selection=[asset.key])

        def tick():
            return sensors["alerts"].evaluate_tick(dg.build_sensor_context(instance=instance, definitions=graph)).skip_message

        assert tick() == "2 alerts sent"
        assert tick() == "nothing to tell"
    by_kind = {each["kind"]: each for each in hook.got}
    assert by_kind.keys() == {"approval", "failed_run"} and by_kind["approval"]["facts"]["release"] == release.name
    assert by_kind["failed_run"]["title"] == "tutor: a run of train failed at sft_model"
    assert "sft_model (ValueError)" in by_kind["failed_run"]["text"] and "SECRET" not in str(hook.got)


def test_a_candidate_that_the_recipe_approves_waits_for_nobody(tmp_path, monkeypatch, make_release):
    graph, sensors = sensors_of(tmp_path, ALERTS + "release: {approval: automatic}\n")
    lake = LakeLayout.open(tmp_path / "lake")
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(make_release(lake, 1)))
    with Webhook().listening() as hook, dg.instance_for_test() as instance:
        monkeypatch.setenv("HOOK", hook.url)
        context = dg.build_sensor_context(instance=instance, definitions=graph)
        assert sensors["alerts"].evaluate_tick(context).skip_message == "nothing to tell"


def test_a_channel_that_hangs_holds_up_no_other_sensor_of_the_same_process(tmp_path, monkeypatch, make_release):
    (tmp_path / "logs").mkdir()
    more = ALERTS + "release: {watch: {hours: 24}}\nautomation: {watch_logs: true, decide: {enabled: true}}\n"
    graph, sensors = sensors_of(tmp_path, more)
    Endpoint(lake := LakeLayout.open(tmp_path / "lake"), "tutor").nominate(ReleaseRef.of(make_release(lake, 1)))
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(*_):
        hangs.set()
        assert goes_on.wait(60)

    monkeypatch.setattr(tell, "__defaults__", (None, hang))
    with dg.instance_for_test() as instance, ThreadPoolExecutor(4) as threads:

        def tick(name):
            cursor = None if name != "new_logs" else "{}"
            return sensors[name].evaluate_tick(dg.build_sensor_context(instance, cursor, definitions=graph)).skip_message

        telling = threads.submit(tick, "alerts")
        assert hangs.wait(60)
        others = [threads.submit(tick, name) for name in ("new_logs", "decide", "release_watch")]
        found = [other.result(60) for other in others]
        assert not telling.done()
        goes_on.set()
        assert "1 alert" in telling.result(60)
    assert found[:2] == ["nothing new", "no cause that was not decided on"] and found[2].startswith("nothing is watched")


def test_a_run_whose_process_is_gone_is_told_on_the_machine_that_started_it(tmp_path, monkeypatch):
    graph, sensors = sensors_of(tmp_path, ALERTS)
    LakeLayout.open(tmp_path / "lake")
    with Webhook().listening() as hook, dg.instance_for_test() as instance:
        monkeypatch.setenv("HOOK", hook.url)
        for host in (socket.gethostname(), "another-machine"):
            instance.add_run(
                dg.DagsterRun(
                    job_name="train",
                    asset_selection=frozenset({dg.AssetKey(["tutor", "sft_model"])}),
                    tags={PROCESS_TAG: "999999@5.00", HOST_TAG: host},
                    status=dg.DagsterRunStatus.STARTED,
                )
            )
        context = dg.build_sensor_context(instance=instance, definitions=graph)
        assert sensors["alerts"].evaluate_tick(context).skip_message == "1 alert sent"
