"""How often a training run validates, and on how many tokens: by default at most a tenth of the tokens that it trains on.

The plan depends on the settings only, never on the clock, so a run and its repetition measure the same.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from model_ops.jobs import filled
from model_ops.training.settings import MOST_VALIDATION_TOKENS, TrainingSettings

AnyDocument = TypeVar("AnyDocument")

SHARE = 0.1
"""Tokens of all validations of a run, as a share of the tokens that it trains on."""
TIMES = 4
"""Most validations of a run."""
ENOUGH_TOKENS = 8_000
"""Tokens of one validation before a run gets a second one: a later and more exact loss says more than several noisy ones."""


@dataclass(frozen=True)
class ValidationPlan:
    """When and on how much to validate."""

    tokens: int
    """Most tokens of one validation, over all processes."""
    every: int
    """Optimizer steps between validations; the last step is always followed by one."""


def plan_validation(steps: int, settings: TrainingSettings) -> ValidationPlan:
    """The plan of a run of `steps` steps. settings: resolved; `validation_tokens`, if given, is used four times."""
    if settings.validation_tokens is not None:
        return ValidationPlan(settings.validation_tokens, max(1, math.ceil(steps / TIMES)))
    budget = int(SHARE * steps * filled(settings.tokens_per_step))
    times = max(1, min(TIMES, budget // ENOUGH_TOKENS))
    return ValidationPlan(max(1, min(MOST_VALIDATION_TOKENS, budget // times)), max(1, math.ceil(steps / times)))


def first_documents(
    documents: Sequence[AnyDocument], tokens: int, length: Callable[[Any], int] = len, least: int = 1
) -> list[AnyDocument]:
    """The first documents up to `tokens` tokens; at least `least`, if there are as many. length: tokens of a document."""
    chosen: list[AnyDocument] = []
    held = 0
    for document in documents:
        if len(chosen) >= least and held + length(document) > tokens:
            break
        chosen.append(document)
        held += length(document)
    return chosen
