"""Quantiles of Student's t, for the error of a mean of few values.

    upper_quantile(2)           # 2.920: a one-sided 95 % interval of a mean of three values ends 2.920 standard errors away

Imports no torch.
"""

from __future__ import annotations

QUANTILES = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""95 % quantiles with 1 to 10 degrees of freedom."""


def upper_quantile(degrees: int) -> float:
    """The 95 % quantile; of more than 10 degrees of freedom that of 10, which is larger by at most 10 %. Fewer than 1 count as
    1."""
    return QUANTILES[min(len(QUANTILES), max(1, degrees)) - 1]
