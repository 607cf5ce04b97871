"""The tail of the latencies of a number of requests, as far up as so many can tell it.

    tail_s([0.41, 0.44, 0.43, 2.10, ...])          # seconds

The 99th percentile of 64 requests is nearly the slowest of them: one slow request on a busy machine, and not the tail. So at
least ABOVE requests lie above the quantile that is taken, and it is at least the median: of 500 requests and more it is the
99th percentile, of 64 the 92nd, of 8 the median.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ABOVE = 5


def tail_quantile(requests: int) -> float:
    """The quantile, from 0.5 to 0.99, that so many requests can tell. requests: at least 1."""
    return min(0.99, max(0.5, 1 - ABOVE / requests))


def tail_s(latencies: Sequence[float]) -> float:
    """The latency at that quantile, in the unit of `latencies`. Raises ValueError without any."""
    if not latencies:
        raise ValueError("there are no latencies, so they have no tail")
    return float(np.quantile(latencies, tail_quantile(len(latencies))))
