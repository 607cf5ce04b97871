"""The lake's Dagster instance: processes that open it at once, the limits in force, runs whose process is gone."""

import multiprocessing
import os
import socket
import subprocess
import time
from types import SimpleNamespace

import dagster as dg
import psutil
import pytest

from assets.ownership import LAKE_POOL, WORKER_POOL
from pipelines.graph.schedules import JOB_TAG
from pipelines.running.daemon import ASKED, COULD_NOT, MOST, RETRIED_AS, WILL_RETRY, LostRetries
from pipelines.running.instance import fail_dead_runs, open_instance, set_pools
from resources.lake.lake import LakeLayout
from resources.launching.local_launcher import ONCE, ask_for_another_try
from resources.launching.run_history import HOST_TAG, PROCESS_TAG

PROCESSES = 4


def opened(lake, begin, results):
    begin.wait()
    try:
        with open_instance(lake) as instance:
            results.put(f"{instance.get_runs_count()} runs, {len(instance.all_instigator_state())} sensors")
    except Exception as error:
        results.put(repr(error))


def test_several_processes_may_open_a_new_lakes_history_at_once(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    context = multiprocessing.get_context("fork")
    begin, results = context.Barrier(PROCESSES), context.Queue()
    started = [context.Process(target=opened, args=(lake, begin, results)) for _ in range(PROCESSES)]
    for process in started:
        process.start()
    found = [results.get(timeout=120) for _ in started]
    for process in started:
        process.join()
    assert found == ["0 runs, 0 sensors"] * PROCESSES


@pytest.fixture
def lake(tmp_path, monkeypatch):
    for name in ("MILLRACE_HOME", "MILLRACE_POSTGRES", "MILLRACE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DAGSTER_HOME", "")
    return LakeLayout.open(tmp_path / "lake")


def test_the_limits_that_are_shipped_are_in_force(lake, monkeypatch):
    with open_instance(lake) as instance:
        set_pools(instance)
        queue = instance.get_concurrency_config().run_queue_config
        assert queue.max_concurrent_runs == 2
        assert queue.tag_concurrency_limits == [{"key": JOB_TAG, "value": {"applyLimitPerUniqueValue": True}, "limit": 1}]
        assert instance.get_sensor_settings() == {"use_threads": True, "num_workers": 4}
        slots = {pool: instance.event_log_storage.get_concurrency_info(pool).slot_count for pool in (LAKE_POOL, WORKER_POOL)}
        assert slots == {LAKE_POOL: 1, WORKER_POOL: 1}
        assert instance.run_monitoring_enabled and instance.run_monitoring_max_resume_run_attempts == 0
        assert instance.run_monitoring_settings["free_slots_after_run_end_seconds"] == 60
        assert (instance.run_retries_max_retries, instance.run_retries_retry_on_asset_or_op_failure) == (3, False)
    monkeypatch.setenv("MILLRACE_DEVICES", "0;1;2")
    with open_instance(lake) as instance:
        assert instance.get_concurrency_config().run_queue_config.max_concurrent_runs == 4
        assert instance.event_log_storage.get_concurrency_info(WORKER_POOL).slot_count == 3
        assert instance.event_log_storage.get_concurrency_info(LAKE_POOL).slot_count == 1
    monkeypatch.delenv("MILLRACE_DEVICES")
    with open_instance(lake) as instance:  # a command in another terminal changes no limit of the daemon's
        assert instance.event_log_storage.get_concurrency_info(WORKER_POOL).slot_count == 3
        set_pools(instance)
        assert instance.event_log_storage.get_concurrency_info(WORKER_POOL).slot_count == 1


@dg.op
def good():
    return None


@dg.job
def work():
    good()


class LaunchedRun:
    """A run as the daemon launches it: with an origin, which `create_run_for_job` leaves out, and the engine event of its
    process."""

    def __init__(self, instance, status=dg.DagsterRunStatus.STARTED):
        from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin
        from dagster._core.test_utils import create_run_for_test

        place = GrpcServerCodeLocationOrigin(host="localhost", port=4266, location_name="shop")
        origin = RemoteRepositoryOrigin(place, "__repository__").get_job_origin("work")
        self.instance = instance
        self.run = create_run_for_test(instance, job_name="work", status=status, remote_job_origin=origin)

    def has_process(self, pid):
        from dagster._core.events import EngineEventData

        self.instance.report_engine_event(f"Started process for run (pid: {pid}).", self.run, EngineEventData.in_process(pid))
        return self

    @property
    def status(self):
        return self.instance.get_run_by_id(self.run.run_id).status


def ended_process():
    done = subprocess.Popen(["true"])
    done.wait()
    return done.pid


def test_launched_runs_whose_process_is_gone_are_failed_and_will_be_retried(lake):
    with open_instance(lake) as instance:
        alive, dead, unknown = (
            LaunchedRun(instance).has_process(os.getpid()),
            LaunchedRun(instance).has_process(ended_process()),
            LaunchedRun(instance),
        )
        retried = LaunchedRun(instance).has_process(ended_process()).has_process(os.getpid())  # the newest process counts
        assert fail_dead_runs(instance) == []  # not by `millrace run`, which may be on another machine
        assert fail_dead_runs(instance, launched=True) == [dead.run.run_id]
        assert [run.status for run in (alive, unknown, retried)] == [dg.DagsterRunStatus.STARTED] * 3
        assert dead.status == dg.DagsterRunStatus.FAILURE
        assert instance.get_run_by_id(dead.run.run_id).tags["dagster/will_retry"] == "true"
        [failure] = instance.all_logs(dead.run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
        assert "The process of this run is gone" in failure.dagster_event.message


def test_a_retry_that_dagster_gave_up_is_asked_for_again_and_not_for_ever(lake, monkeypatch):
    with open_instance(lake) as instance:
        lost, failed_step, done = (LaunchedRun(instance).run.run_id for _ in range(3))
        for run_id in (lost, failed_step, done):
            instance.report_run_failed(instance.get_run_by_id(run_id))
            instance.add_run_tags(run_id, {WILL_RETRY: "false"})
        for run_id in (lost, done):
            instance.report_engine_event(COULD_NOT, instance.get_run_by_id(run_id))
        instance.add_run_tags(done, {RETRIED_AS: "another"})
        again = LostRetries()
        assert again.look(instance) == [lost]
        assert instance.get_run_by_id(lost).tags[WILL_RETRY] == "true"
        assert len(instance.all_logs(lost, of_type=dg.DagsterEventType.RUN_FAILURE)) == 2
        assert again.look(instance) == []
        instance.add_run_tags(lost, {WILL_RETRY: "false"})  # Dagster counts too many retries: nothing was given up again
        assert LostRetries().look(instance) == []
        instance.report_engine_event(COULD_NOT, instance.get_run_by_id(lost))
        assert LostRetries().look(instance) == [lost]
        instance.add_run_tags(lost, {WILL_RETRY: "false", ASKED: str(MOST)})
        instance.report_engine_event(COULD_NOT, instance.get_run_by_id(lost))
        assert LostRetries().look(instance) == []


def test_a_process_that_began_later_is_not_the_runs(lake, monkeypatch):
    with open_instance(lake) as instance:
        run = LaunchedRun(instance).has_process(os.getpid())
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: time.time() + 60)
        assert fail_dead_runs(instance, launched=True) == [run.run.run_id]


def test_runs_of_another_machine_are_left_to_it(lake):
    with open_instance(lake) as instance:
        runs = {
            host: instance.create_run_for_job(
                work, tags={PROCESS_TAG: "999999@5.00", **tags}, status=dg.DagsterRunStatus.STARTED
            ).run_id
            for host, tags in (
                ("none", {}),
                ("here", {HOST_TAG: socket.gethostname()}),
                ("there", {HOST_TAG: "another-machine"}),
            )
        }
        assert set(fail_dead_runs(instance)) == {runs["none"], runs["here"]}


def test_a_worker_that_was_killed_gives_its_run_one_more_try(lake):
    from dagster._core.events import JobFailureData, RunFailureReason

    with open_instance(lake) as instance:
        launched = LaunchedRun(instance)
        by_hand = instance.create_run_for_job(work, status=dg.DagsterRunStatus.STARTED)
        for run in (launched.run, by_hand):
            ask_for_another_try(SimpleNamespace(run=instance.get_run_by_id(run.run_id), run_id=run.run_id, instance=instance))
        assert ONCE.items() <= instance.get_run_by_id(launched.run.run_id).tags.items()
        assert not ONCE.keys() & instance.get_run_by_id(by_hand.run_id).tags.keys()
        ask_for_another_try(None)
        other = LaunchedRun(instance)
        for run in (launched.run, other.run):
            instance.report_run_failed(run, None, JobFailureData(error=None, failure_reason=RunFailureReason.STEP_FAILURE))
        assert instance.get_run_by_id(launched.run.run_id).tags["dagster/will_retry"] == "true"
        assert instance.get_run_by_id(other.run.run_id).tags["dagster/will_retry"] == "false"
