"""The noise of recovery: how far it may be off because the test rows are these and not others.

    low, high = recovery_interval(reference_rows, served_rows)

recovery = exp(reference loss - served loss), losses per target token. Both models read the same rows, so rows are drawn in
pairs: what makes a row hard for both drops out, and what is left is the difference between the two models.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model_ops.decoding.acceptance import RESAMPLES
from model_ops.errors import ModelError
from model_ops.training.likelihood import RowLoss

DRAWN_AT_ONCE = 1_000_000
"""Rows drawn at a time, so that a large test split costs time and no memory."""


def recovery_interval(reference: Sequence[RowLoss], served: Sequence[RowLoss], seed: int = 0) -> tuple[float, float]:
    """95 % interval of recovery, by a paired bootstrap over rows, in whatever order the two models read them.

    Raises ModelError where the models have no row in common.
    """
    of_reference = {row.row_id: row for row in reference}
    pairs = [(of_reference[row.row_id], row) for row in served if row.row_id in of_reference]
    if not pairs:
        raise ModelError("reference and target have no test row in common, so recovery cannot be measured")
    sums = np.array([[first.nll_sum, first.tokens, second.nll_sum, second.tokens] for first, second in pairs])
    generator, found = np.random.default_rng(seed), []
    share = max(1, DRAWN_AT_ONCE // len(pairs))
    for done in range(0, RESAMPLES, share):
        draws = generator.integers(0, len(pairs), (min(share, RESAMPLES - done), len(pairs)))
        nll, tokens, served_nll, served_tokens = np.moveaxis(sums[draws].sum(axis=1), 1, 0)
        found.append(np.exp(nll / tokens - served_nll / served_tokens))
    low, high = np.percentile(np.concatenate(found), [2.5, 97.5])
    return float(low), float(high)
