"""Learning rates: a pure function of the step, so that a resumed run needs to store none of it."""

from __future__ import annotations

import math

from model_ops.specs import TrainingSettings


def learning_rate_at(step: int, steps: int, settings: TrainingSettings) -> float:
    """Linear warm-up, then a cosine down to `final_learning_rate_share` of the peak at the last step."""
    warmup = round(settings.warmup_share * steps)
    if step < warmup:
        return settings.learning_rate * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - 1 - warmup)
    floor = settings.final_learning_rate_share
    return settings.learning_rate * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * share)))
