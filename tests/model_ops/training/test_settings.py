"""Presets leave nothing open that a run needs, in every stage that trains."""

import pytest

from model_ops.operations.table import OPERATIONS
from model_ops.speculators.registry import ARCHITECTURES
from model_ops.training.settings import TrainingSettings

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
        ("eagle3", "muon", 5e-3, 0.1),
        ("dflash", "muon", 5e-3, 1.0),
        ("mtp", "adamw", 4e-5, 1.0),
        ("draft_model", "adamw", 4e-5, 1.0),
    ],
)
def test_new_drafters_learn_with_muon_and_trained_ones_with_adamw(architecture, optimizer, rate, share):
    resolved = of(f"speculator {architecture}").resolved()
    assert (resolved.optimizer, resolved.learning_rate, resolved.adamw_rate_share) == (optimizer, rate, share)


def test_the_rate_of_a_drafter_follows_its_optimizer():
    assert of("speculator eagle3", optimizer="adamw", preset="quick").resolved().learning_rate == 1e-3
    assert of("speculator eagle3", learning_rate=0.02, preset="quick").resolved().learning_rate == 0.02
    assert of("speculator mtp", optimizer="muon", preset="quick").resolved().learning_rate == 1e-4
