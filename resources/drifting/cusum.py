"""A CUSUM chart against a fall: it adds up the evidence of each hour, and its bound comes from the series' own history.

    charted, alarms = chart(increments, bound)             # the sum at each step; it begins again at 0 after an alarm
    bound = bound_for(history, 24, rate, rng)               # history: increments without a change, 24 a day

Increments are log likelihood ratios of a fall against none (Page 1954), or anything that is below 0 on average without a fall.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

HISTORIES, SERIES, DAYS = 60, 150, 100
"""Resampled histories; series that are followed for each, and days of each: 15,000 days tell a rate of 5 in 10,000."""
KEEPING = 0.95
"""Share of the resampled histories that must keep the rate. A sample's tails are thinner than those of what it was drawn from,
so fewer true histories do: over simulated ones with independent hours the rate was right on average; with autocorrelated hours
it was exceeded (benchmarks/drift.py)."""
LARGEST = 1e6

Increments = Float[np.ndarray, " steps"]


def chart(increments: Increments, bound: float) -> tuple[Float[np.ndarray, " steps"], Bool[np.ndarray, " steps"]]:
    """The sum after each step, and where it crossed the bound. After an alarm the sum begins again at 0."""
    sums, alarms, total = np.zeros(len(increments)), np.zeros(len(increments), dtype=bool), 0.0
    for step, increment in enumerate(increments):
        total = max(0.0, total + increment)
        sums[step], alarms[step] = total, total > bound
        total = 0.0 if total > bound else total
    return sums, alarms


def bound_for(history: Increments, steps_a_day: int, rate: float, rng: np.random.Generator) -> float:
    """The bound that gives about `rate` false alarms a day, on average over histories of this length: an approximation.

    history: increments without a change, in order. A moving-block bootstrap (blocks of a day keep what neighbouring hours
    share) draws histories as they could have been, and from each of them series that are charted: KEEPING of the
    histories must keep the rate, because the true one may be any of them. Raises ValueError for less than two days of history.
    """
    days = len(history) // steps_a_day
    if days < 2:
        raise ValueError("a bound needs at least two days of history")
    within = np.arange(steps_a_day)

    def blocks(sources: np.ndarray, count: int) -> np.ndarray:
        """`count` blocks from anywhere in each row of `sources`, one after the other."""
        starts = rng.integers(0, sources.shape[1] - steps_a_day + 1, (len(sources), count))
        places = (starts[:, :, None] + within).reshape(len(sources), -1)
        return np.take_along_axis(sources, places, axis=1)

    histories = blocks(np.broadcast_to(history.astype(np.float32), (HISTORIES, len(history))), days)
    series = blocks(np.repeat(histories, SERIES, axis=0), DAYS)

    from resources.drifting.chart_kernels import alarms_in

    def most_keep(bound: float) -> bool:
        rates = alarms_in(series, bound).reshape(HISTORIES, SERIES).mean(axis=1) / DAYS
        return float(np.mean(rates <= rate)) >= KEEPING

    low, high = 0.0, 1.0
    while not most_keep(high) and high < LARGEST:
        low, high = high, 2 * high
    while high - low > 0.02 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if most_keep(middle) else (middle, high)
    return high
