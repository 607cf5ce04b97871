"""Predicted seconds of stages, from the measured speed of products."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from model_ops.machine.devices import DEVICES
from model_ops.machine.precision import Speeds
from model_ops.planning.memory_plan import MemoryOf
from model_ops.planning.shape_rates import ShapeRates
from pipelines.contract.recipe import load_recipe, read_recipe
from pipelines.planning import stage_times as module
from pipelines.planning.stage_times import Speed, StageFacts, TrafficSize, speed_of, stage_seconds
from pipelines.planning.training_plan import SAID
from pipelines.storage.locations import RECIPES
from resources.stages.table import STAGES, stage

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
    found = stage_seconds(read_recipe(text, RECIPES), Speed(105.0, "float32"), TRAFFIC)
    measured = {
        "base_model": 25,
        "sft_model": 23,
        "student_model": 31,
        "speculator_dataset": 16,
        "speculator": 11,
        "length_report": 11,
        "interactions": 6,
    }
    assert all(0.6 < found[name] / seconds < 1.6 for name, seconds in measured.items()), found
    assert sum(found[name] for name in measured) == pytest.approx(sum(measured.values()), rel=0.2)


def test_twice_the_steps_or_half_the_speed_takes_about_twice_as_long():
    text = (RECIPES / "demo.yaml").read_text()
    once = stage_seconds(DEMO, Speed(100.0, "float32"), TRAFFIC)
    twice = stage_seconds(read_recipe(text.replace("steps: 400", "steps: 800"), RECIPES), Speed(100.0, "float32"), TRAFFIC)
    slow = stage_seconds(DEMO, Speed(50.0, "float32"), TRAFFIC)
    assert 1.9 < twice["base_model"] / once["base_model"] < 2.0 and twice["sft_model"] == once["sft_model"]
    assert 1.6 < slow["sft_model"] / once["sft_model"] < 2.0 and slow["seed_examples"] == once["seed_examples"]


def test_every_stage_of_a_recipe_is_predicted_and_none_that_is_off():
    found = stage_seconds(DEMO, Speed(100.0, "float32"), TRAFFIC)
    made = {each.name for each in STAGES if each.kind != "outside" and each.name != "feedback"} - set(DEMO.disabled)
    assert set(found) == made | {"around the steps"}
    text = (RECIPES / "demo.yaml").read_text()
    tuned = read_recipe(text + "second_sft: {steps: 10}\nstudent_off: 1\n".replace("student_off: 1\n", ""), RECIPES)
    assert stage_seconds(tuned, Speed(100.0, "float32"), TRAFFIC)["second_sft_model"] > 5


def test_epochs_count_the_records_and_an_unknown_size_predicts_nothing(tmp_path):
    text = "workload: w\nbase_model: {}\nsources: {{g: {{uri: ./logs}}}}\n"
    by_epochs = [
        stage_seconds(read_recipe(text.format("tiny"), tmp_path), Speed(100.0, "float32"), TrafficSize(count, 200))["sft_model"]
        for count in (10_000, 20_000)
    ]
    assert 1.8 < by_epochs[1] / by_epochs[0] < 2.1
    assert stage_seconds(read_recipe(text.format("someone/unknown-7b"), tmp_path), Speed(100.0, "float32"), TRAFFIC) == {}


def test_the_speed_is_of_the_precision_that_trains(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "cpu_speeds", lambda threads: asked.append(threads) or Speeds(40.0, 100.0))
    monkeypatch.setattr(module, "stage_facts", lambda recipe, device: StageFacts({"sft_model": 2e9}, {}))
    text = Path(RECIPES / "quick.yaml").read_text()
    assert speed_of(read_recipe(text, RECIPES)) == Speed(100.0, "bfloat16", {}, {"sft_model": 2e9})
    fixed = read_recipe(
        text.replace("{layers: 7,", "{layers: 7, precision: float32,")
        .replace("steps: 30,", "steps: 30, precision: float32,")
        .replace("sft:     {", "sft:     {precision: float32, ")
        .replace("  ttt_steps", "  precision: float32\n  ttt_steps"),
        RECIPES,
    )
    assert speed_of(fixed) == Speed(40.0, "float32", {}, {"sft_model": 2e9}) and asked == [2, 2]
    assert speed_of(fixed, DEVICES["h100"]) == Speed(989e3, "bfloat16", {}, {"sft_model": 2e9})


RATES = ShapeRates.assumed(100.0, 1e6, 1e7)


def test_measured_rates_of_the_method_that_trains_come_first(tmp_path):
    """3 steps of 1,024 tokens and a trial of one micro-batch; 0.7 of the tokens pass the head; a tenth is validated: before, after,
    and as saved."""
    text = "workload: w\nbase_model: tiny\nsources: {g: {uri: ./logs}}\nsft: {method: lora, steps: 3, tokens_per_step: 1024}\n"
    recipe = read_recipe(text, tmp_path)
    layers = recipe.tiny.resolved().layers
    slow = RATES._replace(step_s=2e-3, head_step_s=4e-3, forward_s=1e-3, head_forward_s=2e-3)
    found = stage_seconds(recipe, Speed(1.0, "float32", {"full": RATES, "lora": slow}), TRAFFIC)["sft_model"]
    trained = 4_096 * (layers * 2e-3 + 0.7 * 4e-3) + 3 * 307.2 * (layers * RATES.forward_s + 0.7 * RATES.head_forward_s)
    fixed = stage("sft_model").fixed_seconds + stage("sft_model").record_seconds * TRAFFIC.records
    assert found == pytest.approx(fixed + trained, rel=1e-3)


def test_gptq_takes_its_columns_and_rounding_to_nearest_none(tmp_path):
    text = "workload: w\nbase_model: tiny\nsources: {{g: {{uri: ./logs}}}}\nstudent: {{enabled: false}}\nquantize: {}\n"
    rates = {"full": RATES._replace(column_s=1e-2, output_s=0.0, exact_s=0.0)}
    gptq, rtn = (
        stage_seconds(read_recipe(text.format(kind), tmp_path), Speed(1.0, "float32", rates), TRAFFIC)["quantized_model"]
        for kind in ("{scheme: w4a16}", "{scheme: w8a8}")
    )
    tiny = read_recipe(text.format("{}"), tmp_path).tiny.resolved()
    columns = tiny.layers * (5 * tiny.hidden_size + tiny.heads * tiny.head_dim + tiny.mlp_size)
    assert rtn == 1.0 and gptq == pytest.approx(1.0 + columns * 1e-2)


def test_a_speed_is_read_as_it_was_written():
    speed = Speed(3.0, "bfloat16", {"lora": RATES}, {"sft_model": 1.0})
    assert Speed.read(json.loads(json.dumps(speed.as_dict()))) == speed


def test_each_block_is_tried_where_four_bits_cost_much(tmp_path):
    text = "workload: w\nbase_model: tiny\nsources: {{g: {{uri: ./logs}}}}\nstudent: {{enabled: false}}\nquantize: {}\n"
    rates = {"full": ShapeRates(*[0.0] * len(ShapeRates._fields))._replace(head_exact_s=1e-3)}
    four, eight = (
        stage_seconds(read_recipe(text.format(kind), tmp_path), Speed(1.0, "float32", rates), TRAFFIC)["evaluation_report"]
        for kind in ("{scheme: w4a16}", "{scheme: w8a8}")
    )
    layers = read_recipe(text.format("{}"), tmp_path).tiny.resolved().layers
    assert four - eight == pytest.approx(layers * 4_096 * 0.7 * 1e-3)


def test_the_table_of_a_plan_names_every_part_of_memory():
    assert set(SAID) == {field.name for field in fields(MemoryOf)}
