"""Dagster's history, read without Dagster: runs in progress, whether their process lives, seconds of steps."""

import os
import socket
import sqlite3

import psutil
import pytest

from resources.digests.code import PACKAGES
from resources.lake.lake import LakeLayout
from resources.launching.run_history import HOST_TAG, PROCESS_TAG, runs, runs_in_progress, seconds_of_steps, steps_underway


@pytest.fixture
def lake(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    folder = lake.dagster_home / "history" / "runs"
    folder.mkdir(parents=True)
    alive = f"{os.getpid()}@{psutil.Process().create_time():.2f}"
    with sqlite3.connect(folder.parent / "runs.db") as history:
        columns = "id integer, run_id text, pipeline_name text, status text, start_time float, end_time float"
        history.execute(f"create table runs ({columns})")
        history.execute("create table run_tags (id integer, run_id text, key text, value text)")
        history.executemany(
            "insert into runs values (?, ?, ?, ?, ?, ?)",
            [
                (1, "done", "logs", "SUCCESS", 1000.0, 1010.0),
                (2, "dead", "train", "STARTED", 1020.0, None),
                (3, "alive", "train", "STARTED", 1030.0, None),
                (4, "unsaid", "train", "QUEUED", None, None),
                (5, "elsewhere", "train", "STARTED", 1040.0, None),
            ],
        )
        history.executemany(
            "insert into run_tags values (?, ?, ?, ?)",
            [
                (1, "dead", PROCESS_TAG, "999999@5.00"),
                (2, "alive", PROCESS_TAG, alive),
                (3, "alive", HOST_TAG, socket.gethostname()),
                (4, "elsewhere", PROCESS_TAG, "999999@5.00"),
                (5, "elsewhere", HOST_TAG, "another-machine"),
            ],
        )
    with sqlite3.connect(folder / "alive.db") as events:
        events.execute("create table event_logs (id integer, step_key text, dagster_event_type text, timestamp text)")
        events.executemany(
            "insert into event_logs values (?, ?, ?, ?)",
            [
                (1, "sft_model", "STEP_START", "2026-06-01 10:00:00.5"),
                (2, "sft_model", "STEP_SUCCESS", "2026-06-01 10:01:00.5"),
                (3, "student_model", "STEP_START", "2026-06-01 10:02:00"),
                (4, "speculator", "STEP_START", "2026-06-01 10:02:00"),
                (5, "speculator", "STEP_FAILURE", "2026-06-01 10:03:00"),
            ],
        )
    return lake


def test_runs_in_progress_and_whether_their_process_lives(lake):
    assert [run.run_id for run in runs(lake)] == ["elsewhere", "unsaid", "alive", "dead", "done"]
    alive = {run.run_id: run.is_alive for run in runs_in_progress(lake)}
    assert alive == {"unsaid": None, "alive": True, "dead": False, "elsewhere": None}


def test_seconds_of_finished_steps_and_names_of_those_underway(lake):
    assert seconds_of_steps(lake, "alive") == pytest.approx({"sft_model": 60.0}, abs=0.01)
    assert steps_underway(lake, "alive") == ["student_model"]


def test_what_is_not_there_or_no_database_is_no_runs(lake, tmp_path):
    assert seconds_of_steps(lake, "nowhere") == {}
    (lake.dagster_home / "history" / "runs.db").write_text("not a database, and long enough to be taken for one" * 40)
    assert runs(lake) == []
    assert runs(LakeLayout.open(tmp_path / "empty")) == []


def test_what_dagster_itself_writes_is_read_as_dagster_reads_it(tmp_path):
    """The one place that reads Dagster's files: this fails when Dagster keeps its history otherwise."""
    import dagster as dg

    from pipelines.running.instance import open_instance

    lake = LakeLayout.open(tmp_path / "lake")
    instance = open_instance(lake)

    @dg.asset
    def good(): ...

    @dg.asset(deps=["good"])
    def bad():
        raise ValueError("broken")

    done = dg.materialize([good, bad], instance=instance, raise_on_error=False, tags={PROCESS_TAG: "999999@5.00"})
    [seen] = runs(lake)
    known = instance.get_run_by_id(done.run_id)
    stats = instance.get_run_stats(done.run_id)
    assert (seen.run_id, seen.job, seen.status, seen.process) == (done.run_id, known.job_name, "FAILURE", "999999@5.00")
    assert seen.started_at.timestamp() == pytest.approx(stats.start_time)
    assert seen.ended_at.timestamp() == pytest.approx(stats.end_time)
    assert not seen.is_in_progress and steps_underway(lake, done.run_id) == []
    [step] = instance.get_run_step_stats(done.run_id, ["good"])
    assert seconds_of_steps(lake, done.run_id) == {"good": pytest.approx(step.end_time - step.start_time, abs=0.05)}


def test_dagster_s_private_modules_are_imported_by_one_file():
    """What cannot be had from Dagster's public names is read from its files, in resources/launching/run_history.py alone; the
    origin of a run has no public name at all."""
    from tests.conftest import PROJECT

    for package in PACKAGES:
        for path in (PROJECT / package).rglob("*.py"):
            assert "dagster._" not in path.read_text(encoding="utf-8") or path.name == "local_launcher.py", path
