"""The steps of a run and their learning rates: a pure function of the step, so that checkpoints need not store them.

    rate = learning_rate_at(index, steps, settings)    # step 0 is the first, steps - 1 the last

All schedules begin with a linear warm-up over `warmup_share` of the steps. The floor is final_learning_rate_share:

- cosine: half a cosine wave down to the floor.
- wsd: flat, then down to the floor over the last `decay_share` of the steps (arXiv 2404.06395), as
  1 - sqrt(share of the decay) (arXiv 2405.18392), which falls fast at first.
- linear: a line down to the floor.
- constant: flat.
"""

import math

from model_ops.jobs import filled
from model_ops.training.settings import TrainingSettings


def learning_rate_at(step: int, steps: int, settings: TrainingSettings) -> float:
    """The learning rate of step `step` of `steps`. `settings` are resolved."""
    peak, warmup = filled(settings.learning_rate), round(filled(settings.warmup_share) * steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    floor = filled(settings.final_learning_rate_share)
    match settings.schedule:
        case "cosine":
            factor = floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * _share(step, warmup, steps)))
        case "linear":
            factor = floor + (1 - floor) * (1 - _share(step, warmup, steps))
        case "wsd":
            decay_begins = max(warmup, steps - max(1, round(filled(settings.decay_share) * steps)))
            # the step before the decay has share 0, so every step of the decay is below the peak
            factor = floor + (1 - floor) * (1 - math.sqrt(_share(step, decay_begins - 1, steps)))
        case "constant":
            factor = 1.0
    return peak * factor


def _share(step: int, begins: int, steps: int) -> float:
    """Progress from step `begins` to the last one: 0 up to `begins`, 1 at the last step."""
    return max(0.0, (step - begins) / max(1, steps - 1 - begins))
