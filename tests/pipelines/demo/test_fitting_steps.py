"""The demo's steps on slow and fast machines."""

import io
import json

import pytest
from rich.console import Console

from pipelines.contract.recipe import load_recipe, read_recipe
from pipelines.demo.demo import FULL, QUICK, USED, _say, _time_section, demo_recipe, fit_steps, keep, shortened, stored_share
from pipelines.planning.stage_times import Speed
from pipelines.running.outcome import Outcome
from pipelines.storage.locations import RECIPES

SLOW, FAST = Speed(60.0, "float32"), Speed(1_000.0, "bfloat16")


def chosen(size, speed, share=None):
    return fit_steps(RECIPES / size.recipe, size.budget, size.traffic, speed, share)


@pytest.mark.parametrize("size", [QUICK, FULL])
def test_a_fast_machine_runs_the_whole_recipe(size):
    choice = chosen(size, FAST)
    assert choice.share == 1.0 and choice.left_out == [] and choice.text == (RECIPES / size.recipe).read_text()


def test_a_slow_machine_runs_fewer_steps_within_the_budget_and_names_them():
    choice = chosen(FULL, SLOW)
    recipe, whole = read_recipe(choice.text, RECIPES), load_recipe(RECIPES / "demo.yaml")
    assert sum(choice.seconds.values()) <= USED * FULL.budget < choice.whole
    assert 0.1 <= choice.share < 1
    for before, after in (
        (whole.tiny, recipe.tiny),
        (whole.sft, recipe.sft),
        (whole.student, recipe.student),
        (whole.speculator, recipe.speculator),
    ):
        assert after.steps == round(before.steps * choice.share)
        assert after.model_copy(update={"steps": before.steps}).model_dump(exclude={"answers"}) == before.model_dump(
            exclude={"answers"}
        )
    assert recipe.speculator.answers.prompts < 1_500 and recipe.evaluation.prompts < 130 and recipe.evaluation.rows == 300
    assert f"sft {recipe.sft.steps} of 200 steps" in choice.left_out and len(choice.left_out) == 6


def test_a_section_without_steps_shortens_no_other():
    text = "sft: {steps: 40}\nstudent: {enabled: false}\nspeculator:\n  steps: 100\n  answers: {prompts: 50}\n"
    shorter, left_out = shortened(text, 0.5)
    assert shorter == text.replace("40", "20").replace("100", "50").replace("prompts: 50", "prompts: 25")
    assert left_out == ["sft 20 of 40 steps", "speculator 50 of 100 steps", "speculator 25 of 50 prompts"]


def test_slower_machines_run_less_and_the_slowest_is_told():
    shares = [chosen(FULL, Speed(gflops, "float32")).share for gflops in (20, 60, 120, 250, 1_000)]
    assert shares == sorted(shares) and shares[0] == 0.1
    printed = io.StringIO()
    _say(chosen(FULL, Speed(5.0, "float32")), FULL, False, Console(file=printed, width=200))
    said = printed.getvalue()
    assert "nothing more can be left out" in said and "tiny 40 of 400 steps" in said and "budget is 15 min" in said
    printed = io.StringIO()
    _say(chosen(FULL, FAST), FULL, False, Console(file=printed, width=200))
    said = printed.getvalue()
    assert "Left out" not in said and "about seconds" in said and "sft_model" in said and "1,000 GFLOP/s in bfloat16" in said


def test_a_lake_keeps_its_choice(tmp_path):
    assert stored_share(tmp_path) is None
    choice = chosen(QUICK, SLOW)
    keep(tmp_path, choice)
    assert json.loads((tmp_path / "demo-steps.json").read_text())["left_out"] == choice.left_out
    again = chosen(QUICK, FAST, stored_share(tmp_path))
    assert (again.share, again.text) == (choice.share, choice.text)


def test_the_recipe_that_runs_is_written_beside_the_lake(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    choice = chosen(FULL, SLOW)
    own = demo_recipe(FULL, choice)
    assert own == tmp_path / "demo" / "demo.yaml"
    assert load_recipe(own).sft.steps == round(200 * choice.share)
    monkeypatch.chdir(RECIPES.parent)
    assert demo_recipe(FULL, chosen(FULL, FAST)) == RECIPES / "demo.yaml"


PREDICTED = {"interactions": 2.0, "sft_model": 30.0, "release_candidate": 3.0, "around the steps": 18.0}


def test_a_fresh_demo_is_compared_with_what_was_predicted_and_its_budget():
    section = _time_section(Outcome(seconds=dict.fromkeys(PREDICTED, 1.0), peak_memory_mb=900.0), PREDICTED, 180)
    assert section.columns == ["stage", "seconds", "predicted", "peak memory (MB)"]
    assert section.rows[-1] == ["in all", "4.0", "53", "900"]
    assert "reused" not in section.note and "The budget is 180 s" in section.note


def test_reused_stages_are_not_judged():
    seconds = {"interactions": 0.2, "sft_model": 0.2, "release_candidate": 1.0}
    outcome = Outcome(seconds=seconds, reused={"interactions", "sft_model"})
    section = _time_section(outcome, PREDICTED, 180)
    rows = {row[0]: row[1:] for row in section.rows}
    assert rows["sft_model"] == ["reused", "", ""]
    assert rows["release_candidate"][:2] == ["1.0", "3"]
    assert rows["in all"][1] == "21"
    assert "2 stages were finished by an earlier run" in section.note


def test_one_reused_stage_is_said_in_the_singular():
    expected = "1 stage was finished by an earlier run and reused: its prediction is not counted"
    assert expected in _time_section(Outcome(reused={"traffic"}), PREDICTED, 180).note
