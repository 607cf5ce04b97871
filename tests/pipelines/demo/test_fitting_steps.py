"""The demo's steps on slow and fast machines."""

import io
import json

import pytest
from rich.console import Console

from pipelines.contract.recipe import load_recipe, read_recipe
from pipelines.demo.demo import FULL, QUICK, USED, _say, demo_recipe, fit_steps, keep, stored_share
from pipelines.planning.stage_times import Speed
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
