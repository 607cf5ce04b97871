"""`millrace run` begins with what the run takes and ends with what happened; the run between them stands in."""

import contextlib
import subprocess
import sys
from typing import ClassVar

import pytest

from pipelines.checks import forecast as forecasting
from pipelines.commands import describe as version
from pipelines.planning.stage_times import Speed
from pipelines.running import display as following
from pipelines.running import submission as submitting
from pipelines.running.outcome import Outcome
from pipelines.status import closing as closing_text
from resources.lake.lake import LakeLayout
from tests.command import millrace
from tests.resources.inspecting.test_survey import PAIR, put

RECIPE = "workload: helper\nbase_model: tiny\nsources: {gateway: {uri: gateway}}\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the command with a run that ends with an outcome."""
    put(tmp_path / "gateway" / "2026-06-01.jsonl", PAIR)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    lake = LakeLayout.open(tmp_path / "lake")
    monkeypatch.setattr(forecasting, "speed_of", lambda recipe, device=None: Speed(50.0, "float32"))
    monkeypatch.setattr(forecasting, "accelerators", dict)
    monkeypatch.setattr(submitting, "submit", lambda *_: None)

    def command(outcome, *words, check=0):
        budgets = []
        monkeypatch.setattr(
            following,
            "follow",
            lambda run, console, budget: budgets.append(budget) or (outcome() if callable(outcome) else outcome),
        )
        return millrace("run", tmp_path / "recipe.yaml", "--lake", lake.root, *words, check=check).stdout, budgets[0]

    return command


def test_a_run_begins_with_its_cost_and_ends_with_what_is_next(run):
    said, budget = run(Outcome(state="succeeded", seconds={"interactions": 2.0, "sft_dataset": 1.0}))
    assert said.index("what it does") < said.index("in all") < said.index("time ") < said.index("made        interactions")
    assert "fine-tunes the base" in said and budget["sft_model"] > 0 and "millrace run" in said
    again, _ = run(Outcome(state="succeeded"))
    assert "The last run took" in " ".join(again.split()) and "50 GFLOP/s in float32, measured here" in " ".join(again.split())


def test_a_selection_shows_its_own_stages_or_no_table(run):
    said, budget = run(Outcome(state="succeeded"), "--select", "sft_model,speculator")
    assert set(budget) == {"sft_model", "speculator", "around the steps"} and "evaluation_report" not in said
    for words in ("+sft_model", "nonsense"):
        said, budget = run(Outcome(state="succeeded"), "--select", words)
        assert "what it does" not in said and (budget is not None) == (words == "+sft_model")


def test_a_refused_run_says_nothing_more(run):
    said, _ = run(Outcome(exit_code=2, state="refused", messages=["no log objects"]), check=2)
    assert "next" not in said.splitlines()[-1]


@pytest.mark.parametrize("code", [1, 0])
def test_the_exit_code_is_the_run_s_also_if_the_recipe_was_edited_or_its_closing_fails(run, tmp_path, monkeypatch, code):
    def unreadable(*_):
        raise ValueError("no such thing")

    def ends():
        (tmp_path / "recipe.yaml").write_text("workload: [")
        return Outcome(exit_code=code, state="failed" if code else "succeeded")

    assert "millrace run" in run(ends, check=code)[0]
    monkeypatch.setattr(closing_text, "print_closing", unreadable)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    run(lambda: Outcome(exit_code=code, state="failed" if code else "succeeded"), check=code)


@pytest.mark.parametrize("why", [KeyboardInterrupt(), SystemExit(143), ValueError("a defect")])
def test_a_run_does_not_go_on_alone_where_the_forecast_ends(run, monkeypatch, why):
    class Started:
        said: ClassVar = []

        def stop(self):
            self.said.append("stop")

        def wait(self):
            self.said.append("wait")

    def fails(*_):
        raise why

    monkeypatch.setattr(submitting, "submit", lambda *_: Started())
    monkeypatch.setattr(forecasting, "forecast_of_run", fails)
    with contextlib.suppress(BaseException):
        run(None, check=None)
    assert Started.said == ["stop", "wait"]
    Started.said.clear()


def test_the_line_names_what_it_runs_on():
    line = version.version_line()
    assert line.startswith(f"millrace {version.own_version()} (python 3.")
    for name in ("dagster", "duckdb", "torch"):
        assert f"{name} " in line
    assert "not installed" not in line and "\n" not in line


def test_the_revision_of_a_checkout_and_of_what_is_none(tmp_path):
    assert version.checkout_revision(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "a").write_text("1")
    subprocess.run([*git, "add", "a"], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    clean = version.checkout_revision(tmp_path)
    assert clean and len(clean) == 12
    (tmp_path / "a").write_text("2")
    assert version.checkout_revision(tmp_path) == f"{clean}-dirty"


def test_the_command_imports_no_heavy_library_to_say_it():
    said = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pipelines.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith("millrace ")
    imported = {line.rsplit("|", 1)[-1].strip() for line in said.stderr.splitlines()}
    assert not imported & {"torch", "dagster", "duckdb", "pyarrow", "pydantic"}
