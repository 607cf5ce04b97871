"""Objects whose run failed are asked for again: once, after a pause, and not while another run has them."""

import time

import dagster as dg
import pytest

from pipelines.graph import sensors as asking_again
from pipelines.graph.sensors import FIRST_PAUSE_S, LONGEST_PAUSE_S, OBJECTS_TAG, key_of


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
