"""Settings that Dagster's Launchpad, or a decision (resources/deciding), can change for one run without changing the recipe."""

import math
from typing import TypeVar

import dagster as dg
from pydantic import Field

from model_ops.evaluation import EvaluateSettings
from model_ops.jobs import Settings
from model_ops.operations import SftSettings
from model_ops.speculators import SpeculatorSettings
from model_ops.training import TrainingSettings

AnySettings = TypeVar("AnySettings", bound=Settings)
LEAST_PROMPTS = 16
"""Prompts, rows and items that an evaluation keeps, if the recipe asks for as many."""


class TrainingOverrides(dg.Config):
    """For this run only; empty fields keep the recipe's values. Other values make another version."""

    steps: int | None = Field(default=None, description="Optimizer steps of this run instead of the recipe's")
    learning_rate: float | None = Field(default=None, description="Peak learning rate of this run instead of the recipe's")
    seed: int | None = Field(default=None, description="Seed of row order and initialisation instead of the recipe's")

    def applied_to(self, settings: TrainingSettings) -> TrainingSettings:
        return _with(settings, steps=self.steps, learning_rate=self.learning_rate, seed=self.seed)


class BaseOverrides(TrainingOverrides):
    """The same for the base model, which can also be imported anew from the Hub."""

    revision: str | None = Field(
        default=None,
        description="Of a base model on the Hugging Face Hub: the branch, tag or commit to import instead of the "
        "commit that it was imported from",
    )


class DrafterOverrides(TrainingOverrides):
    """The same for the drafter, which can also continue the lake's last one."""

    continue_from_last: bool = Field(
        default=False, description="Continue the lake's last drafter, if it is one of the same target; a new one otherwise"
    )
    step_share: float = Field(
        default=1.0, gt=0, le=1, description="Share of the recipe's steps or epochs of a drafter that continues the last one"
    )

    def drafter(self, settings: SpeculatorSettings, may_continue: bool) -> SpeculatorSettings:
        """may_continue: whether the last drafter is one of the same target. Without, it is trained as the recipe says."""
        settings = self.applied_to(settings)
        if not (self.continue_from_last and may_continue):
            return settings
        return _with(_shortened(settings, self.step_share), continue_from="last")


class SftOverrides(TrainingOverrides):
    """The same for fine-tuning, which can also continue the last model on rows that it has not learnt, with some that it
    has."""

    continue_from_last: bool = Field(
        default=False, description="Continue the lake's last fine-tuned model of the same base on rows that it has not learnt"
    )
    replay: float = Field(default=0.5, ge=0, description="Rows that it has learnt, for each one that it has not")

    def model(self, settings: SftSettings, may_continue: bool) -> SftSettings:
        """may_continue: whether the last model is one of the same base."""
        settings = self.applied_to(settings)
        if not (self.continue_from_last and may_continue):
            return settings
        return _with(settings, continue_from="last", replay=self.replay)


class AnswersOverrides(dg.Config):
    """For this run only: whether answers of the same target to the same prompts are taken from the last version."""

    reuse: bool = Field(
        default=False, description="Take the last version's answers to prompts that it has, if the target is the same"
    )


class EvaluationOverrides(dg.Config):
    """For this run only: how much is measured."""

    share: float = Field(default=1.0, gt=0, le=100, description="Times the recipe's rows, prompts and items")

    def applied_to(self, settings: EvaluateSettings) -> EvaluateSettings:
        larger = settings
        if self.share != 1:
            rows = self._times(larger.rows) if larger.rows is not None else None
            tasks = _with(larger.tasks, items=self._times(larger.tasks.items) if larger.tasks.items else 0)
            larger = larger.model_copy(update={"rows": rows, "prompts": self._times(larger.prompts), "tasks": tasks})
        return larger

    def _times(self, count: int) -> int:
        return min(count, LEAST_PROMPTS) if count * self.share < LEAST_PROMPTS else math.ceil(count * self.share)


def _shortened(settings: SpeculatorSettings, share: float) -> SpeculatorSettings:
    """Settings with a share of the steps, or else of the epochs."""
    if settings.steps is not None:
        return _with(settings, steps=max(1, math.ceil(settings.steps * share)))
    return _with(settings, epochs=settings.resolved().epochs * share)


def _with(settings: AnySettings, **given: object) -> AnySettings:
    """The settings with the values that are given, checked again."""
    named = {name: value for name, value in given.items() if value is not None}
    return type(settings).model_validate({**settings.model_dump(), **named})
