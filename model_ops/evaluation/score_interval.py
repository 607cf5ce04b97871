"""95 % intervals of mean scores, and of the mean difference of two models' scores on the same items.

    low, high = mean_interval(differences)         # one number per item; None for a single item

Bootstrap over items; below 20 items Student's t. If all numbers are equal, neither has any spread, although other items might
differ: then the rule of three gives 3 / n as the largest share of items that differ (Hanley and Lippman-Hand 1983, JAMA 249).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from model_ops.decoding.student_t import student
from model_ops.evaluation.recovery_interval import FEWEST_DRAWN, RESAMPLES


def mean_interval(scores: Sequence[float], least: float, most: float, seed: int = 0) -> tuple[float, float] | None:
    """The interval of the mean of scores between `least` and `most`, one per item; None for fewer than two items."""
    values = np.asarray(scores, dtype=np.float64)
    count = len(values)
    if count < 2:
        return None
    mean = float(values.mean())
    if np.ptp(values) == 0:
        low, high = mean - 3 / count, mean + 3 / count
    elif count < FEWEST_DRAWN:
        reach = student(count - 1) * float(values.std(ddof=1)) / math.sqrt(count)
        low, high = mean - reach, mean + reach
    else:
        draws = np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))
        low, high = np.percentile(values[draws].mean(axis=1), [2.5, 97.5])
    return max(least, float(low)), min(most, float(high))
