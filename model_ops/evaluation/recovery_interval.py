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

from model_ops.decoding.acceptance import LARGEST_EXPONENT
from model_ops.decoding.student_t import T_975, moves, student, variance
from model_ops.errors import ModelError
from model_ops.training.likelihood import RowLoss

DRAWN_AT_ONCE = 1_000_000
"""Rows drawn at a time, which bounds memory for a large test split."""

RESAMPLES = 2_000
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
    """The interval from few rows. sums: (rows, 4), loss and tokens of the first, then of the second model."""
    nll, tokens, second_nll, second_tokens = sums.T
    middle = float(second_nll.sum() / second_tokens.sum() - nll.sum() / tokens.sum())
    reach = student(len(sums) - 1) * math.sqrt(variance(moves(second_tokens, second_nll) - moves(tokens, nll)))
    return middle - reach, middle + reach
