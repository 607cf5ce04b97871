"""95 % confidence intervals of the difference of two losses, and of recovery, over the choice of test rows.

    low, high = recovery_interval(reference_rows, served_rows)           # None for a single row
    low, high = loss_increase_interval(base_rows, served_rows)           # of served loss - base loss

recovery = exp(reference loss - served loss), losses per target token. Both models read the same rows and are compared row by
row: the difficulty of a row cancels out, and the difference between the models remains. Intervals are by Student's t: a
bootstrap of 5 rows misses one end in 9 to 13 % of cases instead of 2.5 %, and of 30 rows in 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from model_ops.decoding.acceptance import LARGEST_EXPONENT
from model_ops.decoding.student_t import moves, student, variance
from model_ops.errors import ModelError
from model_ops.training.likelihood import RowLoss


def recovery_interval(reference: Sequence[RowLoss], served: Sequence[RowLoss]) -> tuple[float, float] | None:
    """95 % interval of recovery over rows paired by id, in any order; None for a single row.

    Raises ModelError if the models have no row in common.
    """
    found = loss_increase_interval(reference, served)
    return None if found is None else (math.exp(-found[1]), math.exp(min(-found[0], LARGEST_EXPONENT)))


def loss_increase_interval(first: Sequence[RowLoss], second: Sequence[RowLoss]) -> tuple[float, float] | None:
    """95 % interval of second's loss - first's loss, in nats per token, over rows paired by id; None for a single row.

    Student's t of the rows' differences, weighted by tokens. Raises ModelError if the models have no row in common.
    """
    of_first = {row.row_id: row for row in first}
    pairs = [(of_first[row.row_id], row) for row in second if row.row_id in of_first]
    if not pairs:
        raise ModelError("two models have no test row in common, so their losses cannot be compared: evaluate both on the same "
                         "dataset")
    sums = np.array([[before.nll_sum, before.tokens, after.nll_sum, after.tokens] for before, after in pairs])
    scored = sums[(sums[:, 1] > 0) & (sums[:, 3] > 0)]
    if len(scored) < 2:
        return None
    nll, tokens, second_nll, second_tokens = scored.T
    middle = float(second_nll.sum() / second_tokens.sum() - nll.sum() / tokens.sum())
    reach = student(len(scored) - 1) * math.sqrt(variance(moves(second_tokens, second_nll) - moves(tokens, nll)))
    return middle - reach, middle + reach
