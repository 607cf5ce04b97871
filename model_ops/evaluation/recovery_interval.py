"""95 % confidence intervals over the choice of test rows or items: of loss differences, of recovery, and of mean scores.

Both models read the same rows and are compared row by row. Intervals are by Student's t: a bootstrap of 5 rows misses one end
in 9 to 13 % of cases instead of 2.5 %, and of 30 rows in 5 %. Without spread the rule of three gives 3 / n as the largest share
of items that differ (Hanley and Lippman-Hand 1983, JAMA 249).
"""

import math
from collections.abc import Sequence

import numpy as np

from model_ops.documents import RowLoss
from model_ops.drafting import LARGEST_EXPONENT, moves, student, variance
from model_ops.jobs import ModelError


def recovery_interval(reference: Sequence[RowLoss], served: Sequence[RowLoss]) -> tuple[float, float] | None:
    """95 % interval of recovery over rows paired by id, in any order; None for a single row.

    Raises ModelError if the models have no row in common.
    """
    ends = loss_increase_interval(reference, served)
    return None if ends is None else (math.exp(-ends[1]), math.exp(min(-ends[0], LARGEST_EXPONENT)))


def loss_increase_interval(first: Sequence[RowLoss], second: Sequence[RowLoss]) -> tuple[float, float] | None:
    """95 % interval of second's loss - first's loss, in nats per token, over rows paired by id; None for a single row.

    Student's t of the rows' differences, weighted by tokens. Raises ModelError if the models have no row in common.
    """
    of_first = {row.row_id: row for row in first}
    pairs = [(of_first[row.row_id], row) for row in second if row.row_id in of_first]
    if not pairs:
        raise ModelError(
            "two models have no test row in common, so their losses cannot be compared: evaluate both on the same dataset"
        )
    sums = np.array([[before.nll_sum, before.tokens, after.nll_sum, after.tokens] for before, after in pairs])
    scored = sums[(sums[:, 1] > 0) & (sums[:, 3] > 0)]
    if len(scored) < 2:
        return None
    nll, tokens, second_nll, second_tokens = scored.T
    middle = float(second_nll.sum() / second_tokens.sum() - nll.sum() / tokens.sum())
    reach = student(len(scored) - 1) * math.sqrt(variance(moves(second_tokens, second_nll) - moves(tokens, nll)))
    return middle - reach, middle + reach


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
