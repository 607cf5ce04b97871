"""Predicted seconds of stages, from the measured speed of products."""

from pathlib import Path

import pytest

from model_ops.machine.precision import Speeds
from pipelines.contract.recipe import load_recipe, read_recipe
from pipelines.planning import stage_times as module
from pipelines.planning.stage_times import Speed, TrafficSize, speed_of, stage_seconds
from pipelines.storage.locations import RECIPES
from resources.stages.table import STAGES

DEMO = load_recipe(RECIPES / "demo.yaml")
TRAFFIC = TrafficSize(6_600, 200)
MINI = "threads: 1\n" + (RECIPES / "demo.yaml").read_text()


def test_a_prediction_is_near_what_was_measured_on_one_thread():
    """Processor seconds of a small run of the full-sized models (8, 6, 4 and 6 steps) on one thread of a Xeon, 105 GFLOP/s."""
    text = MINI
    for before, after in (
        ("steps: 400", "steps: 8"),
        ("steps: 200", "steps: 6"),
        ("steps: 60", "steps: 4"),
        ("steps: 130", "steps: 6"),
        ("prompts: 1500", "prompts: 64"),
        ("rows: 300, prompts: 130", "rows: 40, prompts: 16"),
    ):
        assert before in text
        text = text.replace(before, after)
    found = stage_seconds(read_recipe(text, RECIPES), 105.0, TRAFFIC)
    measured = {
        "base_model": 25,
        "sft_model": 23,
        "student_model": 31,
        "speculator_dataset": 16,
        "speculator": 11,
        "evaluation_report": 112,
        "length_report": 11,
        "interactions": 6,
    }
    assert all(0.6 < found[name] / seconds < 1.6 for name, seconds in measured.items()), found
    assert sum(found.values()) == pytest.approx(250, rel=0.2)


def test_twice_the_steps_or_half_the_speed_takes_about_twice_as_long():
    text = (RECIPES / "demo.yaml").read_text()
    once = stage_seconds(DEMO, 100.0, TRAFFIC)
    twice = stage_seconds(read_recipe(text.replace("steps: 400", "steps: 800"), RECIPES), 100.0, TRAFFIC)
    slow = stage_seconds(DEMO, 50.0, TRAFFIC)
    assert 1.9 < twice["base_model"] / once["base_model"] < 2.0 and twice["sft_model"] == once["sft_model"]
    assert 1.6 < slow["sft_model"] / once["sft_model"] < 2.0 and slow["seed_examples"] == once["seed_examples"]


def test_every_stage_of_a_recipe_is_predicted_and_none_that_is_off():
    found = stage_seconds(DEMO, 100.0, TRAFFIC)
    made = {each.name for each in STAGES if each.kind != "outside" and not each.module} - set(DEMO.disabled)
    assert set(found) == made | {"around the steps"}
    text = (RECIPES / "demo.yaml").read_text()
    tuned = read_recipe(text + "second_sft: {steps: 10}\nstudent_off: 1\n".replace("student_off: 1\n", ""), RECIPES)
    assert stage_seconds(tuned, 100.0, TRAFFIC)["second_sft_model"] > 5


def test_epochs_count_the_records_and_an_unknown_size_predicts_nothing(tmp_path):
    text = "workload: w\nbase_model: {}\nsources: {{g: {{uri: ./logs}}}}\n"
    by_epochs = [
        stage_seconds(read_recipe(text.format("tiny"), tmp_path), 100.0, TrafficSize(count, 200))["sft_model"]
        for count in (10_000, 20_000)
    ]
    assert 1.8 < by_epochs[1] / by_epochs[0] < 2.1
    assert stage_seconds(read_recipe(text.format("someone/unknown-7b"), tmp_path), 100.0, TRAFFIC) == {}


def test_the_speed_is_of_the_precision_that_trains(monkeypatch):
    asked = []
    monkeypatch.setattr(module.processor, "best_speeds", lambda threads: asked.append(threads) or Speeds(40.0, 100.0))
    text = Path(RECIPES / "quick.yaml").read_text()
    assert speed_of(read_recipe(text, RECIPES)) == Speed(100.0, "bfloat16")
    fixed = read_recipe(
        text.replace("{layers: 7,", "{layers: 7, precision: float32,")
        .replace("steps: 30,", "steps: 30, precision: float32,")
        .replace("sft:     {", "sft:     {precision: float32, ")
        .replace("  ttt_steps", "  precision: float32\n  ttt_steps"),
        RECIPES,
    )
    assert speed_of(fixed) == Speed(40.0, "float32") and asked == [2, 2]
