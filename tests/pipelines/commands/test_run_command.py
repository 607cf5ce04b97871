"""`millrace run` begins with what the run takes and ends with what happened; the run between them stands in."""

import pytest

from pipelines.checks import forecast as forecasting
from pipelines.planning.stage_seconds import Speed
from pipelines.running import follow as following
from pipelines.running import submit as submitting
from pipelines.running.outcome import Outcome
from resources.lake import Lake
from tests.command import millrace
from tests.resources.inspecting.test_survey import PAIR, put


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the command with a run that ends with an outcome."""
    put(tmp_path / "gateway" / "2026-06-01.jsonl", PAIR)
    (tmp_path / "recipe.yaml").write_text("workload: helper\nbase_model: tiny\nsources: {gateway: {uri: gateway}}\n")
    lake = Lake.open(tmp_path / "lake")
    monkeypatch.setattr(forecasting, "speed_of", lambda recipe: Speed(50.0, "float32"))
    monkeypatch.setattr(forecasting, "accelerators", dict)
    monkeypatch.setattr(submitting, "submit", lambda *_: None)

    def command(outcome, *words, check=0):
        budgets = []
        monkeypatch.setattr(following, "follow", lambda run, console, budget: budgets.append(budget) or outcome)
        return millrace("run", tmp_path / "recipe.yaml", "--lake", lake.root, *words, check=check).stdout, budgets[0]

    return command


def test_a_run_begins_with_its_cost_and_ends_with_what_is_next(run):
    said, budget = run(Outcome(state="succeeded", seconds={"interactions": 2.0, "sft_dataset": 1.0}))
    assert said.index("what it does") < said.index("in all") < said.index("time ") < said.index("made        interactions")
    assert "fine-tunes the base" in said and budget["sft_model"] > 0 and "millrace run" in said
    again, _ = run(Outcome(state="succeeded"))
    assert "The last run took" in " ".join(again.split()) and "50 GFLOP/s, measured here" in " ".join(again.split())


def test_a_selection_shows_its_own_stages_or_no_table(run):
    said, budget = run(Outcome(state="succeeded"), "--select", "sft_model,speculator")
    assert set(budget) == {"sft_model", "speculator", "around the steps"} and "evaluation_report" not in said
    for words in ("+sft_model", "nonsense"):
        said, budget = run(Outcome(state="succeeded"), "--select", words)
        assert "what it does" not in said and budget is None


def test_a_refused_run_says_nothing_more(run):
    said, _ = run(Outcome(exit_code=2, state="refused", messages=["no log objects"]), check=2)
    assert "next" not in said.splitlines()[-1]
