"""What a run may change about a recipe: a drafter and a model that continue, an evaluation that measures less or more."""

import pytest

from assets.overrides import DrafterOverrides, EvaluationOverrides, SftOverrides
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.operations.sft_settings import SecondSftSettings, SftSettings
from model_ops.speculators.eagle3.architecture import Eagle3Settings


def test_a_drafter_continues_with_a_share_of_its_steps_or_epochs():
    continues = DrafterOverrides(continue_from_last=True, step_share=0.25)
    by_steps = continues.drafter(Eagle3Settings(steps=130), may_continue=True)
    assert (by_steps.steps, by_steps.continue_from) == (33, "last")
    by_epochs = continues.drafter(Eagle3Settings(epochs=4), may_continue=True)
    assert (by_epochs.steps, by_epochs.epochs, by_epochs.continue_from) == (None, 1.0, "last")


def test_a_drafter_of_another_target_is_trained_as_the_recipe_says():
    settings = Eagle3Settings(steps=130)
    assert DrafterOverrides(continue_from_last=True, step_share=0.25).drafter(settings, may_continue=False) == settings
    assert DrafterOverrides().drafter(settings, may_continue=True) == settings


def test_a_model_continues_with_its_replay():
    continued = SftOverrides(continue_from_last=True, replay=0.2).model(SftSettings(), may_continue=True)
    assert (continued.continue_from, continued.replay) == ("last", 0.2)
    assert SftOverrides(continue_from_last=True).model(SftSettings(), may_continue=False) == SftSettings()
    with pytest.raises(ValueError, match="a second stage continues"):
        SecondSftSettings(continue_from="last")


def test_an_evaluation_takes_a_share_but_never_more_than_a_small_recipe_asks_for():
    half = EvaluationOverrides(share=0.5).applied_to(EvaluateSettings(prompts=200, rows=300))
    assert (half.prompts, half.rows, half.tasks.items) == (100, 150, 50)
    assert EvaluationOverrides(share=0.5).applied_to(EvaluateSettings(prompts=20, rows=8)).prompts == 16
    assert EvaluationOverrides(share=0.5).applied_to(EvaluateSettings(prompts=20, rows=8)).rows == 8
    assert EvaluationOverrides(share=2.0).applied_to(EvaluateSettings(prompts=20, rows=None)).prompts == 40
    assert EvaluationOverrides().applied_to(EvaluateSettings()) == EvaluateSettings()
