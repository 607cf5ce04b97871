"""95 % confidence intervals of the difference of two losses, and of recovery, over the choice of test rows.

    low, high = recovery_interval(reference_rows, served_rows)           # None for a single row
    low, high = loss_increase_interval(base_rows, served_rows)           # of served loss - base loss

recovery = exp(reference loss - served loss), losses per target token. Both models read the same rows, so the bootstrap draws
pairs of rows: the difficulty of a row cancels out, and the difference between the models remains. Below 20 rows a bootstrap
interval is too narrow (with 5 rows it misses one end in 9 to 13 % of cases instead of 2.5 %), so Student's t is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from model_ops.decoding.acceptance import RESAMPLES
from model_ops.errors import ModelError
from model_ops.training.likelihood import RowLoss

DRAWN_AT_ONCE = 1_000_000
"""Rows drawn at a time, which bounds memory for a large test split."""

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
         2.101)
"""0.975 quantiles of Student's t for 1 to 18 degrees of freedom: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2."""

LARGEST_EXPONENT = 700.0
"""exp of a larger number is infinite, which JSON cannot hold."""

FEWEST_DRAWN = len(T_975) + 2
"""Number of rows from which the bootstrap is used."""


def recovery_interval(reference: Sequence[RowLoss], served: Sequence[RowLoss], seed: int = 0) -> tuple[float, float] | None:
    """95 % interval of recovery over rows paired by id, in any order; None for a single row.

    Raises ModelError if the models have no row in common.
    """
    found = loss_increase_interval(reference, served, seed)
    return None if found is None else (math.exp(-found[1]), math.exp(min(-found[0], LARGEST_EXPONENT)))


def loss_increase_interval(first: Sequence[RowLoss], second: Sequence[RowLoss], seed: int = 0) -> tuple[float, float] | None:
    """95 % interval of second's loss - first's loss, in nats per token, over rows paired by id; None for a single row.

    Paired bootstrap; with fewer than FEWEST_DRAWN rows that have target tokens, Student's t of their differences, weighted by
    tokens. Raises ModelError if the models have no row in common.
    """
    of_first = {row.row_id: row for row in first}
    pairs = [(of_first[row.row_id], row) for row in second if row.row_id in of_first]
    if not pairs:
        raise ModelError("two models have no test row in common, so their losses cannot be compared: evaluate both on the same "
                         "dataset")
    sums = np.array([[before.nll_sum, before.tokens, after.nll_sum, after.tokens] for before, after in pairs])
    scored = sums[(sums[:, 1] > 0) & (sums[:, 3] > 0)]
    if len(scored) < FEWEST_DRAWN:
        return _by_student(scored) if len(scored) > 1 else None
    generator, found = np.random.default_rng(seed), []
    share = max(1, DRAWN_AT_ONCE // len(scored))
    for done in range(0, RESAMPLES, share):
        draws = generator.integers(0, len(scored), (min(share, RESAMPLES - done), len(scored)))
        nll, tokens, second_nll, second_tokens = np.moveaxis(scored[draws].sum(axis=1), 1, 0)
        found.append(second_nll / second_tokens - nll / tokens)
    low, high = np.percentile(np.concatenate(found), [2.5, 97.5])
    return float(low), float(high)


def _by_student(sums: np.ndarray) -> tuple[float, float]:
    """The interval from few rows. sums: (rows, 4), loss and tokens of the first, then of the second model.

    The error of the mean is the error of a ratio of sums. The residual of a row is divided by 1 - its share of the tokens
    (jackknife correction), because a long row pulls the mean towards itself and its residual is too small.
    """
    nll, tokens, second_nll, second_tokens = sums.T
    loss, second_loss = nll.sum() / tokens.sum(), second_nll.sum() / second_tokens.sum()
    share = tokens / tokens.sum()
    parts = (second_nll - second_loss * second_tokens) / second_tokens.sum() - (nll - loss * tokens) / tokens.sum()
    rows = len(sums)
    error = math.sqrt((rows - 1) / rows * float(np.sum((parts / (1 - share)) ** 2)))
    middle, reach = float(second_loss - loss), T_975[rows - 2] * error
    return middle - reach, middle + reach
