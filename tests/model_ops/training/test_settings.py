"""Presets leave nothing open that a run needs, in every stage that trains."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import write_target

from model_ops.documents.documents import Document
from model_ops.documents.likelihood import held_out_loss, held_out_totals, mean_loss
from model_ops.models.model_directory import load_model
from model_ops.operations import OPERATIONS, PreferenceTuningSettings, SftSettings
from model_ops.parallel.world import World
from model_ops.reinforcement.rft_settings import RftSettings
from model_ops.speculators.registry import ARCHITECTURES
from model_ops.training.settings import MOST_VALIDATION_TOKENS, TrainingSettings, first_documents, plan_validation


@given(st.integers(1, 100_000), st.integers(64, 1_000_000))
def test_validations_together_read_at_most_a_tenth_of_the_trained_tokens(steps, tokens_per_step):
    plan = plan_validation(steps, SftSettings(tokens_per_step=tokens_per_step).resolved())
    times = math.ceil(steps / plan.every)
    assert 1 <= times <= 4 and 1 <= plan.tokens <= MOST_VALIDATION_TOKENS
    assert times * plan.tokens <= max(1, 0.1 * steps * tokens_per_step)


def test_a_long_run_validates_four_times_and_a_short_one_once_on_little():
    long = plan_validation(1_000, SftSettings(tokens_per_step=65_536).resolved())
    short = plan_validation(15, SftSettings(tokens_per_step=2_048).resolved())
    assert (long.tokens, long.every) == (50_000, 250)
    assert (short.tokens, short.every) == (3_072, 15)
    given = plan_validation(15, SftSettings(tokens_per_step=2_048, validation_tokens=20_000).resolved())
    assert (given.tokens, given.every) == (20_000, 4)


def documents(lengths):
    rng = np.random.default_rng(0)
    return [
        Document(f"row-{place}", rng.integers(3, 90, length).astype(np.int32), rng.random(length) < 0.5)
        for place, length in enumerate(lengths)
    ]


def test_the_first_documents_up_to_a_number_of_tokens():
    rows = documents([10, 20, 30, 1])
    assert [row.row_id for row in first_documents(rows, 35)] == ["row-0", "row-1"]
    assert [row.row_id for row in first_documents(rows, 3)] == ["row-0"]
    assert [row.row_id for row in first_documents(rows, 3, least=2)] == ["row-0", "row-1"]
    assert first_documents([], 3) == []


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    write_target(place, layers=2)
    return load_model(place, attention="packed")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_processes_share_the_documents_and_make_the_same_number_of_forward_passes(model, ranks):
    rows = documents([12, 30, 35, 20, 38, 9, 25])
    whole = held_out_loss(model, rows, batch_tokens=40)
    passes, found = [], []
    for rank in range(ranks):
        calls = []
        body = model.model.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        found.append(held_out_totals(model, rows, World(torch.device("cpu"), rank, ranks, rank, ranks), batch_tokens=40))
        body.remove()
        passes.append(len(calls))
    assert len(set(passes)) == 1 and passes[0] > 0
    assert sum(tokens for _, tokens in found) == sum(row.tokens for row in whole)
    assert sum(nll for nll, _ in found) == pytest.approx(mean_loss(whole) * sum(row.tokens for row in whole), rel=1e-5)
    assert ranks == 1 or all(0 < tokens < sum(row.tokens for row in whole) for _, tokens in found)


DRAFTERS = {f"speculator {name}": found.settings for name, found in ARCHITECTURES.items()}
STAGES = {
    **{name: kind for name, kind in OPERATIONS.items() if isinstance(kind, type) and issubclass(kind, TrainingSettings)},
    **DRAFTERS,
}


def of(stage, **values):
    """Settings of a stage; of a drafter, its architecture named as a recipe names it."""
    named = {"architecture": stage.partition(" ")[2]} if stage in DRAFTERS else {"grader": "verifier"} if stage == "rft" else {}
    return STAGES[stage](**{**named, **values})


def test_four_stages_train():
    assert {"tiny_base", "sft", "distill", "speculator eagle3"} <= STAGES.keys()


@pytest.mark.parametrize("preset", ["quick", "balanced", "thorough"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_preset_fills_everything_but_what_is_said_to_stay_open(stage, preset):
    kind = STAGES[stage]
    resolved = of(stage, preset=preset).resolved()
    still_open = {name for name in kind.model_fields if getattr(resolved, name) is None}
    assert still_open <= kind.STAY_OPEN.keys()
    assert (resolved.steps is None) != (resolved.epochs is None)
    assert kind.model_validate(resolved.model_dump()) == resolved


ONE_PASS = {"preference", "reward_model"}
"""What learns pairs learns them once: a second pass learns them by heart."""


@pytest.mark.parametrize("stage", STAGES)
def test_a_more_thorough_preset_looks_at_no_less(stage):
    quick, balanced, thorough = (of(stage, preset=preset).resolved() for preset in ("quick", "balanced", "thorough"))
    for smaller, larger in ((quick, balanced), (balanced, thorough)):
        passes = (smaller.steps or smaller.epochs), (larger.steps or larger.epochs)
        assert passes[0] < passes[1] or (passes[0] == passes[1] and stage in ONE_PASS)
        assert smaller.max_length <= larger.max_length and smaller.tokens_per_step <= larger.tokens_per_step


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_set_stays_set_under_every_preset(stage):
    chosen = {
        "learning_rate": 7e-4,
        "beta1": 0.8,
        "beta2": 0.7,
        "epsilon": 1e-6,
        "decay_share": 0.3,
        "adamw_rate_share": 0.4,
        "warmup_share": 0.2,
        "final_learning_rate_share": 0.0,
        "weight_decay": 0.0,
        "gradient_clip": 3.0,
        "checkpoint_every": 7,
        "max_length": 999,
        "tokens_per_step": 77,
    }
    resolved = of(stage, preset="thorough", steps=5, **chosen).resolved()
    assert {name: getattr(resolved, name) for name in chosen} == chosen
    assert resolved.steps == 5 and resolved.epochs is None


@pytest.mark.parametrize(
    ("architecture", "optimizer", "rate", "share"),
    [
        ("eagle3", "muon", 5e-3, 0.1), ("dflash", "muon", 5e-3, 1.0), ("mtp", "adamw", 4e-5, 1.0),
        ("draft_model", "adamw", 4e-5, 1.0),
    ],
)  # fmt: skip
def test_new_drafters_learn_with_muon_and_trained_ones_with_adamw(architecture, optimizer, rate, share):
    resolved = of(f"speculator {architecture}").resolved()
    assert (resolved.optimizer, resolved.learning_rate, resolved.adamw_rate_share) == (optimizer, rate, share)


def test_the_rate_of_a_drafter_follows_its_optimizer():
    assert of("speculator eagle3", optimizer="adamw", preset="quick").resolved().learning_rate == 1e-3
    assert of("speculator eagle3", learning_rate=0.02, preset="quick").resolved().learning_rate == 0.02
    assert of("speculator mtp", optimizer="muon", preset="quick").resolved().learning_rate == 1e-4


@pytest.mark.parametrize(
    ("settings", "tokens", "per_step", "steps", "passes"),
    [
        (SftSettings(), 21_800, 2_048, 50, 4.7),  # 140 rows of 156 tokens: smaller steps and more passes
        (SftSettings(), 10_000_000, 65_536, 306, 2),  # much data: the preset as it is
        (SftSettings(), 1_000_000, 40_000, 50, 2),  # enough for two passes in smaller steps
        (SftSettings(), 1_000, 1_000, 10, 10),  # no step holds more than a pass, and passes have a bound
        (SftSettings(epochs=3), 21_800, 2_048, 32, 3),  # what is given stays
        (SftSettings(tokens_per_step=8_192), 21_800, 8_192, 27, 10),
        (SftSettings(epochs=1, tokens_per_step=8_192), 21_800, 8_192, 3, 1),
        (SftSettings(epochs=1, most_epochs=4), 21_800, 2_048, 43, 4),
        (PreferenceTuningSettings(), 14_900, 2_048, 22, 3),  # 113 pairs: made one step of 4.4 passes
        (PreferenceTuningSettings(tokens_per_step=65_536), 14_900, 14_900, 3, 3),
    ],
)
def test_small_data_gets_smaller_steps_and_more_passes(settings, tokens, per_step, steps, passes):
    fitted = settings.resolved().fitted(tokens)
    assert fitted.tokens_per_step == per_step and fitted.epochs == pytest.approx(passes, abs=0.05)
    assert fitted.steps_over(tokens, fitted.tokens_per_step) == steps
    assert fitted.fitted(tokens) == fitted


def test_steps_that_are_given_stay_and_hold_at_most_one_pass():
    fitted = SftSettings(steps=4, tokens_per_step=65_536).resolved().fitted(21_800, longest=300)
    assert (fitted.steps, fitted.epochs, fitted.tokens_per_step) == (4, None, 21_800)
    assert SftSettings().resolved().fitted(21_800, longest=5_000).tokens_per_step == 5_000


def test_prompts_that_are_few_are_answered_more_often():
    rft = RftSettings(grader="verifier").resolved()
    assert (rft.steps_over(60, 16), rft.steps_over(10_000, 16)) == (40, 1_250)
    assert RftSettings(grader="verifier", epochs=1).resolved().steps_over(60, 16) == 4


@pytest.mark.parametrize(
    ("settings", "steps", "remedy"),
    [
        (SftSettings(), 20, None),
        (SftSettings(epochs=1, tokens_per_step=8_192), 4, "set sft.epochs to 13, or sft.tokens_per_step to 655"),
        (SftSettings(steps=4), 4, "set sft.steps to 50 or more, or leave it out"),
        (PreferenceTuningSettings(), 10, None),
        (PreferenceTuningSettings(epochs=1), 7, "set sft.epochs to 5"),
    ],
)
def test_few_steps_have_a_remedy(settings, steps, remedy):
    resolved = settings.resolved()
    if remedy == "set sft.epochs to 5":
        resolved = resolved.model_copy(update={"tokens_per_step": 2_048})
    assert resolved.more_steps(steps, "sft") == remedy


def test_adapters_learn_at_the_rates_that_were_measured():
    rates = [SftSettings, PreferenceTuningSettings, partial(RftSettings, grader="verifier")]
    assert [kind(method="lora").resolved().learning_rate for kind in rates] == pytest.approx([2e-4, 1e-4, 2e-4])


def test_given_steps_of_small_data_are_small_too():
    settings = TrainingSettings(steps=30, preset="balanced").resolved()
    assert settings.fitted(46_000).tokens_per_step == 2_048  # not one pass a step
    assert settings.fitted(10_000_000).tokens_per_step == 65_536
    assert TrainingSettings(steps=30, tokens_per_step=8_192).resolved().fitted(46_000).tokens_per_step == 8_192


def test_settings_that_are_not_resolved_are_refused_where_a_value_is_needed():
    with pytest.raises(ValueError, match=r"not filled in: call resolved\(\) first"):
        plan_validation(10, TrainingSettings())
