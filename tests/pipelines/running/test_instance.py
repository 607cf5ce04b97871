"""A run whose process was killed is failed by the next one, and its pool slot is free again."""

import os
import signal
import subprocess
import sys
import time
import uuid

import dagster as dg
import pytest

from pipelines.running.instance import fail_dead_runs, open_instance
from resources.lake import Lake
from resources.launching.run_history import PROCESS_TAG
from resources.process_stamp import this_process

RUN_THAT_HANGS = """
import sys, time
import dagster as dg
from pipelines.running.instance import open_instance
from resources.process_stamp import this_process
from resources.launching.run_history import PROCESS_TAG
from resources.lake import Lake

@dg.asset(pool="worker")
def slow():
    print("holding", flush=True)
    time.sleep(600)

instance = open_instance(Lake.open(sys.argv[1]))
dg.materialize([slow], instance=instance, tags={PROCESS_TAG: this_process()})
"""


@pytest.fixture
def lake(tmp_path, monkeypatch):
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return Lake.open(tmp_path / "lake")


def test_a_killed_run_is_failed_and_frees_its_pool_slot(lake):
    instance = open_instance(lake)
    process = subprocess.Popen([sys.executable, "-c", RUN_THAT_HANGS, str(lake.root)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not held(instance):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.2)
    assert fail_dead_runs(instance) == []  # it is alive
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert held(instance)
    [run_id] = fail_dead_runs(instance)
    assert instance.get_run_by_id(run_id).status == dg.DagsterRunStatus.FAILURE
    assert not held(instance)
    assert fail_dead_runs(instance) == []


def test_a_run_that_ended_and_kept_its_slot_gives_it_back(lake):
    instance = open_instance(lake)
    ended = str(uuid.uuid4())
    storage = instance.event_log_storage
    storage.initialize_concurrency_limit_to_default("worker")
    storage.claim_concurrency_slot("worker", ended, "sft_model")
    assert held(instance)
    assert fail_dead_runs(instance) == []
    assert not held(instance)


def test_a_run_at_work_keeps_its_slot_when_another_begins(lake):
    instance = open_instance(lake)

    @dg.asset(pool="worker")
    def first():
        assert held(instance)
        assert fail_dead_runs(instance) == []
        assert held(instance)

    assert dg.materialize([first], instance=instance, tags={PROCESS_TAG: this_process()}).success


def held(instance) -> int:
    info = instance.event_log_storage.get_concurrency_info("worker")
    return info.active_slot_count


def test_a_process_is_told_apart_from_a_later_one_with_the_same_pid(lake):
    pid, started = this_process().split("@")
    instance = open_instance(lake)

    @dg.op
    def nothing(): ...

    @dg.job
    def some():
        nothing()

    def stuck(process):
        run = instance.create_run_for_job(some, run_id=str(uuid.uuid4()), tags={PROCESS_TAG: process})
        instance.report_dagster_event(
            dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, some.name), run.run_id
        )
        return run.run_id

    mine, earlier = stuck(this_process()), stuck(f"{pid}@{float(started) - 3600:.2f}")
    assert fail_dead_runs(instance) == [earlier]
    assert instance.get_run_by_id(mine).status == dg.DagsterRunStatus.STARTED
