"""Memory of workers and measured speed, from a recipe: one place for `check`, `run` and `plan`."""

from subprocess import CalledProcessError

import pytest

from model_ops.machine import precision
from model_ops.machine.devices import DEVICES, parse_devices
from model_ops.planning.memory_plan import CPU_PROCESS_GIB, GIB
from pipelines.contract.recipe import read_recipe
from pipelines.planning import stage_times as module
from pipelines.planning import worker_memory as workers
from pipelines.planning.stage_times import StageFacts, stage_facts
from pipelines.planning.training_plan import config_of, plan_recipe, settings_of
from pipelines.planning.worker_memory import worker_memory
from tests.thorough_cases import thorough_except

TEXT = """
workload: w
base_model: tiny
sources: {g: {uri: ./logs}}
sft: {METHOD, max_length: 1024, tokens_per_step: 8192}
preference: {METHOD, max_length: 1024, tokens_per_step: 8192}
rft: {METHOD, grader: verifier, max_length: 1024}
datasets: {preference: {}, rl_prompts: {}}
"""


def memory(recipe, wanted):
    """Of one stage: the others' are not computed."""
    every = worker_memory(recipe, config_of(recipe)[0], parse_devices("cpu")[1])
    return next(peak for name, peak in every if name == wanted)


def recipe_of(folder, method="method: lora", **changes):
    text = TEXT.replace("METHOD", method)
    for before, after in changes.items():
        text = text.replace(before, after)
    return read_recipe(text, folder)


@pytest.mark.parametrize("stage", thorough_except(["preference"], ["sft", "preference"]))
@pytest.mark.parametrize("method", thorough_except(["method: lora"], ["method: lora", "method: full"]))
def test_the_plan_and_the_forecast_say_the_same_memory_of_one_training(tmp_path, method, stage):
    plan = plan_recipe(recipe_of(tmp_path, method), "cpu", stage)
    chosen = ", ".join(f"{key}: {value}" for key, value in settings_of(plan).items())
    same = recipe_of(tmp_path, f"{method}, {chosen}")
    assert memory(same, f"{stage}_model") == plan.memory.total


def test_activations_count_and_grow_with_the_micro_batch(tmp_path):
    small, large = (
        memory(recipe_of(tmp_path, f"method: lora, micro_batch_tokens: {tokens}"), "sft_model") - CPU_PROCESS_GIB * GIB
        for tokens in (1_024, 4_096)
    )
    assert 3 < large / small < 4.2  # the frozen model is small


def test_a_model_that_answers_meanwhile_holds_a_copy_and_its_cache(tmp_path):
    few, many = (
        memory(
            recipe_of(tmp_path, **{"grader: verifier": f"grader: verifier, batch_size: 4096, prompts_per_step: {prompts}"}),
            "rft_model",
        )
        for prompts in (16, 512)
    )
    assert many > 1.5 * few


def test_what_is_kept_is_not_asked_again_and_another_recipe_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(precision, "_FOUND", {})
    asked = []
    numbers = {"memory sft_model": 5e9, **{f"rates lora {part}": 1.0 for part in module.ShapeRates._fields}}
    monkeypatch.setattr(module, "measured_apart", lambda *words: asked.append(words) or numbers)
    first = stage_facts(recipe_of(tmp_path), None)
    assert first.memory == {"sft_model": 5e9} and first.rates["lora"].step_s == 1.0
    monkeypatch.setattr(precision, "_FOUND", {})  # another process
    assert stage_facts(recipe_of(tmp_path), None) == first and len(asked) == 1
    stage_facts(recipe_of(tmp_path, "method: full"), None)
    stage_facts(recipe_of(tmp_path), DEVICES["h100"])
    assert len(asked) == 3


def test_a_model_that_cannot_be_measured_is_forecast_without(tmp_path, monkeypatch):
    def fails(*_):
        raise CalledProcessError(1, "python")

    monkeypatch.setattr(module, "cached_measurement", fails)
    assert stage_facts(recipe_of(tmp_path), None) == StageFacts()


def test_of_what_all_methods_share_the_fastest_measurement_counts(tmp_path, monkeypatch):
    """Work of others makes a measurement slow; what a method trains is its own."""
    recipe = read_recipe(TEXT.replace("METHOD", "method: lora", 1).replace("METHOD", "method: full"), tmp_path)
    parts = {True: {"row_s": 2.0, "step_s": 3.0}, False: {"row_s": 1.0, "step_s": 5.0}}
    monkeypatch.setattr(workers, "cached_measurement", lambda kind, key, measure, form: parts[key[-1] > 0])
    monkeypatch.setattr(workers, "worker_memory", lambda *given: [])
    expected = {"rates lora row_s": 1.0, "rates lora step_s": 3.0, "rates full row_s": 1.0, "rates full step_s": 5.0}
    assert dict(workers.measured(recipe, None)) == expected
