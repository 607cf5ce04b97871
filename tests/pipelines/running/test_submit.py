"""Submitted runs: started, followed, stopped, found again, and left alone by the death of whoever submitted them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from pipelines.contract.recipe import read_recipe
from pipelines.contract.text import RecipeProblemsError
from pipelines.running import submission as module
from pipelines.running.submission import KEPT_RUNS, REQUEST, Run, UnknownRunError, others_running, runs_of, submit
from resources.lake.lake import LakeError, LakeLayout
from tests.conftest import PROJECT

RECIPE = "workload: shop\nbase_model: tiny\nsources: {gateway: {uri: logs}}\nfirst_day: 2026-06-01\nlast_day: 2026-06-02\n"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "suite.jsonl").write_text('{"prompt": "What is a race?", "answer": "A channel."}\n')
    return tmp_path


@pytest.fixture
def stands_in(monkeypatch):
    """stands_in(code): the run's process does what `code` says."""
    return lambda code: monkeypatch.setattr(module, "python_module", lambda *words: [sys.executable, "-c", code, *words])


@pytest.mark.slow
@pytest.mark.thorough
def test_a_recipe_that_is_no_file_runs_and_is_found_again(place):
    recipe = read_recipe(RECIPE + "evals: {held: {uri: suite.jsonl}}\n", place)
    run = submit(recipe, place / "lake", select=["eval_suite"])
    outcome = run.wait(timeout=300)
    assert (outcome.state, outcome.exit_code, outcome.messages) == ("succeeded", 0, [])
    assert set(outcome.seconds) == {"eval_suite"} and run.state == "succeeded"
    again = Run.open(place / "lake", run.id)
    assert again.state == "succeeded" and again.wait().seconds == outcome.seconds
    lake = LakeLayout.open(place / "lake", create=False)
    assert json.loads((lake.root / "recipes" / "shop.json").read_text())["recipe"].startswith(
        str(lake.root / "recipes" / "submitted")
    )


@pytest.mark.slow
def test_a_killed_submitter_leaves_a_run_that_ends_well(place):
    """The submitter is killed at once; the run goes on, ends, and says so to whoever asks."""
    (place / "shop.yaml").write_text(RECIPE)
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom pipelines.running.submission import submit\n"
        "run = submit(Path(sys.argv[1]), sys.argv[2], select=['no_such_asset'])\nprint(run.id, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", script, str(place / "shop.yaml"), str(place / "lake")],
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    assert died.returncode == -signal.SIGKILL
    run = Run.open(place / "lake", died.stdout.strip())
    assert run.state in ("starting", "running", "refused")
    outcome = run.wait(timeout=300)
    assert (outcome.state, outcome.exit_code) == ("refused", 2)
    assert outcome.messages[0].startswith("--select: no asset named no_such_asset")


SLEEPS = (
    "import json, os, signal, sys, time; folder = json.loads(sys.argv[-1])['folder']; "
    "from resources.launching.processes import this_process; "
    "open(folder + '/started.json', 'w').write(json.dumps({'process': this_process()})); "
    "signal.signal(signal.SIGINT, lambda *_: sys.exit(130)); time.sleep(60)"
)


def started(run):
    until = time.monotonic() + 30
    while run.state == "starting" and time.monotonic() < until:
        time.sleep(0.05)
    return run.state


def test_a_run_is_stopped_and_its_state_is_said(place, stands_in):
    stands_in(SLEEPS)
    (place / "shop.yaml").write_text(RECIPE)
    run = submit(place / "shop.yaml", place / "lake")
    assert started(run) == "running"
    with pytest.raises(TimeoutError, match=f"run {run.id} has not ended after 0.1 s; it goes on"):
        run.wait(timeout=0.1)
    assert others_running(run.folder) == [] and [each.id for each in others_running(run.folder.parent / "next")] == [run.id]
    run.stop()
    assert run.wait(timeout=30).state == "stopped" == run.state
    assert others_running(run.folder.parent / "next") == []


def test_a_run_whose_process_was_killed_says_so_to_every_process(place, stands_in):
    stands_in(SLEEPS)
    (place / "shop.yaml").write_text(RECIPE)
    run = submit(place / "shop.yaml", place / "lake")
    assert started(run) == "running"
    other = Run.open(place / "lake", run.id)
    assert other.state == "running" and other.pid == run.pid
    os.kill(run.pid, signal.SIGKILL)
    outcome = run.wait(timeout=30)
    assert outcome.state == "killed" and outcome.exit_code == 1 and "was killed (SIGKILL)" in outcome.messages[0]
    assert other.state == "killed"


def test_a_run_that_never_began_is_not_waited_for_for_ever(place):
    lake = LakeLayout.open(place / "lake")
    folder = runs_of(lake) / "20260601-000000-abcd"
    folder.mkdir(parents=True)
    (folder / REQUEST).write_text("{}")
    assert Run.open(lake, folder.name).state == "starting"
    os.utime(folder, (0, 0))
    assert Run.open(lake, folder.name).state == "killed"


def test_what_cannot_be_started_is_said_before_anything_is(place, monkeypatch):
    (place / "shop.yaml").write_text(RECIPE + "sorces: {}\n")
    with pytest.raises(RecipeProblemsError, match="did you mean sources"):
        submit(place / "shop.yaml", place / "lake")
    monkeypatch.delenv("MILLRACE_LAKE", raising=False)
    with pytest.raises(LakeError, match="no lake is named"):
        submit(read_recipe(RECIPE, place))
    with pytest.raises(UnknownRunError, match="has no run 'other'"):
        Run.open(LakeLayout.open(place / "lake"), "other")
    assert not runs_of(LakeLayout.open(place / "lake")).exists()


def test_the_files_of_old_runs_are_removed(place, stands_in):
    lake = LakeLayout.open(place / "lake")
    for number in range(KEPT_RUNS + 5):
        folder = runs_of(lake) / f"2020{number:04}-000000-abcd"
        folder.mkdir(parents=True)
        (folder / REQUEST).write_text("{}")
        (folder / "exit.json").write_text('{"exit_code": 0}')
    stands_in("pass")
    (place / "shop.yaml").write_text(RECIPE)
    run = submit(place / "shop.yaml", lake.root)
    left = sorted(folder.name for folder in runs_of(lake).iterdir())
    assert len(left) == KEPT_RUNS + 1 and left[-1] == run.id and left[0].startswith("20200005")
    run.wait(timeout=30)
