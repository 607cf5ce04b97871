"""Dagster's history, read without Dagster: runs in progress, whether their process lives, seconds of steps."""

import os
import sqlite3

import psutil
import pytest

from resources.lake import Lake
from resources.launching.run_history import running, runs, seconds_of_steps, steps_underway


@pytest.fixture
def lake(tmp_path):
    lake = Lake.open(tmp_path / "lake")
    folder = lake.dagster_home / "history" / "runs"
    folder.mkdir(parents=True)
    alive = f"{os.getpid()}@{psutil.Process().create_time():.2f}"
    with sqlite3.connect(folder.parent / "runs.db") as history:
        history.execute("create table runs (id integer, run_id text, pipeline_name text, status text, start_time float, end_time float)")
        history.execute("create table run_tags (id integer, run_id text, key text, value text)")
        history.executemany("insert into runs values (?, ?, ?, ?, ?, ?)", [
            (1, "done", "logs", "SUCCESS", 1000.0, 1010.0), (2, "dead", "train", "STARTED", 1020.0, None),
            (3, "alive", "train", "STARTED", 1030.0, None), (4, "unsaid", "train", "QUEUED", None, None)])
        history.executemany("insert into run_tags values (?, ?, 'millrace/process', ?)",
                            [(1, "dead", "999999@5.00"), (2, "alive", alive)])
    with sqlite3.connect(folder / "alive.db") as events:
        events.execute("create table event_logs (id integer, step_key text, dagster_event_type text, timestamp text)")
        events.executemany("insert into event_logs values (?, ?, ?, ?)", [
            (1, "sft_model", "STEP_START", "2026-06-01 10:00:00.5"), (2, "sft_model", "STEP_SUCCESS", "2026-06-01 10:01:00.5"),
            (3, "student_model", "STEP_START", "2026-06-01 10:02:00"), (4, "speculator", "STEP_START", "2026-06-01 10:02:00"),
            (5, "speculator", "STEP_FAILURE", "2026-06-01 10:03:00")])
    return lake


def test_runs_in_progress_and_whether_their_process_lives(lake):
    assert [run.run_id for run in runs(lake)] == ["unsaid", "alive", "dead", "done"]
    assert {run.run_id: run.is_alive for run in running(lake)} == {"unsaid": None, "alive": True, "dead": False}


def test_seconds_of_finished_steps_and_names_of_those_underway(lake):
    assert seconds_of_steps(lake, "alive") == pytest.approx({"sft_model": 60.0}, abs=0.01)
    assert steps_underway(lake, "alive") == ["student_model"]


def test_what_is_not_there_or_no_database_is_no_runs(lake, tmp_path):
    assert seconds_of_steps(lake, "nowhere") == {}
    (lake.dagster_home / "history" / "runs.db").write_text("not a database, and long enough to be taken for one" * 40)
    assert runs(lake) == []
    assert runs(Lake.open(tmp_path / "empty")) == []
