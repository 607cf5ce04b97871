"""95 % intervals of mean scores, and of the mean difference of two models' scores on the same items.

    low, high = mean_interval(differences)         # one number per item; None for a single item

Student's t over items. If all numbers are equal, there is no spread, although other items might differ: then the rule of three
gives 3 / n as the largest share of items that differ (Hanley and Lippman-Hand 1983, JAMA 249).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from model_ops.decoding.student_t import student


def mean_interval(scores: Sequence[float], least: float, most: float) -> tuple[float, float] | None:
    """The interval of the mean of scores between `least` and `most`, one per item; None for fewer than two items."""
    values = np.asarray(scores, dtype=np.float64)
    count = len(values)
    if count < 2:
        return None
    mean = float(values.mean())
    if np.ptp(values) == 0:
        low, high = mean - 3 / count, mean + 3 / count
    else:
        reach = student(count - 1) * float(values.std(ddof=1)) / math.sqrt(count)
        low, high = mean - reach, mean + reach
    return max(least, float(low)), min(most, float(high))
