"""Learning rate schedules: a pure function of the step, so that checkpoints need not store them.

    learning_rate_at(step, steps, settings)     # step 0 is the first, steps - 1 the last
    cooled_learning_rate(step, falls_from, last, steps, settings)      # of a run that ends early (early_end.py)

All schedules begin with a linear warm-up over `warmup_share` of the steps. The floor is final_learning_rate_share:

- cosine: half a cosine wave down to the floor.
- wsd: flat, then down to the floor over the last `decay_share` of the steps (arXiv 2404.06395), as
  1 - sqrt(share of the decay) (arXiv 2405.18392), which falls fast at first.
- linear: a line down to the floor.
- constant: flat.
"""

from __future__ import annotations

import math

from model_ops.training.settings import TrainingSettings


def learning_rate_at(step: int, steps: int, settings: TrainingSettings) -> float:
    """The learning rate of step `step` of `steps`. `settings` are resolved."""
    warmup = round(settings.warmup_share * steps)
    if step < warmup:
        return settings.learning_rate * (step + 1) / warmup
    floor = settings.final_learning_rate_share
    match settings.schedule:
        case "cosine":
            factor = floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * _share(step, warmup, steps)))
        case "linear":
            factor = floor + (1 - floor) * (1 - _share(step, warmup, steps))
        case "wsd":
            decay_begins = max(warmup, steps - max(1, round(settings.decay_share * steps)))
            # the step before the decay has share 0, so every step of the decay is below the peak
            factor = floor + (1 - floor) * (1 - math.sqrt(_share(step, decay_begins - 1, steps)))
        case "constant":
            factor = 1.0
    return settings.learning_rate * factor


def cooled_learning_rate(step: int, falls_from: int, last: int, steps: int, settings: TrainingSettings) -> float:
    """The learning rate of step `step` of a run that ends after `last` of `steps` steps: from that of the schedule in the step
    before `falls_from` to its floor in step last - 1, as that of wsd does. `settings` are resolved."""
    begins = learning_rate_at(falls_from - 1, steps, settings)
    floor = min(begins, settings.final_learning_rate_share * settings.learning_rate)
    return floor + (begins - floor) * (1 - math.sqrt(_share(step, falls_from - 1, last)))


def _share(step: int, begins: int, steps: int) -> float:
    """Progress from step `begins` to the last one: 0 up to `begins`, 1 at the last step."""
    return max(0.0, (step - begins) / max(1, steps - 1 - begins))
