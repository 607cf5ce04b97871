"""A run waits for a step of another process: until that ends, is killed, or was at work in the lake that this one is a copy of."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import dagster as dg
import pytest

import pipelines.running.instance as instances
import pipelines.running.run as module
from assets.ownership import LAKE_POOL
from pipelines.running.instance import open_instance
from pipelines.running.submission import Run, others_running, runs_of
from pipelines.status.lake_status import status_of
from resources.lake.lake import LakeLayout
from resources.launching.run_history import runs_in_progress
from tests.conftest import PROJECT

AT_WORK = """
import socket, sys, time
from pathlib import Path
import dagster as dg
from model_ops.files import write_json
from pipelines.running.instance import open_instance
from resources.lake.lake import LakeLayout
from resources.launching.processes import this_process

@dg.asset(pool="POOL")
def sft_model():
    Path(sys.argv[1]).with_suffix(".begun").touch()
    time.sleep(600)

lake = LakeLayout.open(sys.argv[1])
folder = lake.dagster_home / "submitted" / "one"
folder.mkdir(parents=True)
write_json(folder / "request.json", {"folder": str(folder)})
write_json(folder / "started.json", {"process": this_process()})
tags = {"millrace/process": this_process(), "millrace/host": socket.gethostname(), "millrace/run": "one"}
dg.materialize([sft_model], instance=open_instance(lake), tags=tags)
""".replace("POOL", LAKE_POOL)


@dg.asset(pool=LAKE_POOL)
def sft_model():
    return None


@pytest.fixture
def at_work(tmp_path, monkeypatch):
    """(lake, process of a run that is in its only step)."""
    for name in ("MILLRACE_HOME", "MILLRACE_POSTGRES", "MILLRACE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DAGSTER_HOME", "")
    monkeypatch.setattr(instances, "SECONDS_BETWEEN_LOOKS", 0.5, raising=False)
    process = subprocess.Popen([sys.executable, "-c", AT_WORK, str(tmp_path / "lake")], cwd=PROJECT)
    until = time.monotonic() + 120
    while not (tmp_path / "lake.begun").exists():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    yield LakeLayout.open(tmp_path / "lake"), process
    process.kill()
    process.wait()


def second(lake, monkeypatch, on_note=lambda said: None):
    """What a second run with a step of the same kind says; it must succeed."""
    said = []

    def relay(event):
        if event["event"] == "note":
            said.append(event["message"])
            on_note(event["message"])

    monkeypatch.setattr(module, "relay", relay)
    graph = dg.Definitions(assets=[sft_model], jobs=[dg.define_asset_job("train", [sft_model])])
    folder = runs_of(lake) / "two"
    folder.mkdir()
    request = module.RunRequest(id="two", recipe=lake.root / "shop.yaml", lake=lake.root, folder=folder)
    with open_instance(lake) as instance:
        assert module._execute(graph, "train", [sft_model.key], instance, lake, {}, request)
    return said


@pytest.mark.timeout(180)
def test_a_run_that_is_killed_while_another_waits_for_it_is_not_waited_for(at_work, monkeypatch):
    lake, process = at_work

    def kill(said):
        if " waits: " in said:
            process.send_signal(signal.SIGKILL)
            process.wait()

    waits, dead = second(lake, monkeypatch, kill)
    assert waits.startswith(f"sft_model waits: another run (process {process.pid}) is at work")
    assert "is no longer at work on this lake" in dead


@pytest.mark.timeout(180)
def test_a_run_of_the_lake_that_was_copied_is_not_waited_for_in_the_copy(at_work, monkeypatch, tmp_path):
    lake, process = at_work
    shutil.copytree(lake.root, tmp_path / "copy", symlinks=True)
    copy = LakeLayout.open(tmp_path / "copy")
    [of_lake], [of_copy] = runs_in_progress(lake), runs_in_progress(copy)
    assert (of_lake.is_alive, of_copy.is_alive) == (True, False)
    assert status_of(copy).running[0].is_copied and not status_of(lake).running[0].is_copied
    assert (Run.open(lake, "one").state, Run.open(copy, "one").state) == ("running", "killed")
    assert len(others_running(runs_of(lake) / "x")) == 1 and others_running(runs_of(copy) / "x") == []
    assert "is no longer at work on this lake" in second(copy, monkeypatch)[-1]
    assert process.poll() is None and [run.status for run in runs_in_progress(lake)] == ["STARTED"]


@pytest.mark.timeout(180)
def test_a_process_that_took_the_number_of_a_killed_one_is_not_waited_for(at_work, monkeypatch):
    lake, process = at_work
    process.kill()
    process.wait()
    started = runs_of(lake) / "one" / "started.json"
    stamp = json.loads(started.read_text())["process"].partition("@")[2]
    started.write_text(json.dumps({"process": f"{os.getpid()}@{float(stamp) - 60:.2f}"}))
    assert others_running(runs_of(lake) / "x") == []
    assert "is no longer at work on this lake" in second(lake, monkeypatch)[-1]
