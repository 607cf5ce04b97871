"""Permutation tests over sessions: is a window further from the reference than a random split of all sessions? Sessions are
exchanged within their stratum only (the day of the week). If they are exchangeable there, P(p <= x) <= x holds exactly,
whatever their lengths and however the rows of one depend on each other. A test stops at ENOUGH splits that reach its value: p =
ENOUGH / splits (Besag and Clifford, Sequential Monte Carlo p-values, 1991).

chosen, rest: sums over sessions [draws, categories]. Results: [draws]. A group without any count differs by 0."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

SMOOTHING = 0.5
"""Added to every count, so that a category that a group lacks has a finite logarithm."""

Counts = Float[np.ndarray, "draws categories"]
Values = Float[np.ndarray, " draws"]
Kind = Literal["shares", "rise", "fall"]
"""shares: any change of the shares of the categories. rise, fall: the share of the first category, in one direction."""


def population_stability(chosen: Counts, rest: Counts) -> Values:
    """Population stability index: sum over categories of (p - q) ln(p / q), the symmetric Kullback-Leibler divergence."""
    p, q = _shares(chosen, SMOOTHING), _shares(rest, SMOOTHING)
    return ((p - q) * (np.log(p) - np.log(q))).sum(axis=1) * _both(chosen, rest)


def rise(chosen: Counts, rest: Counts) -> Values:
    """By how much the share of the first category is higher in `chosen`, from -1 to 1."""
    return (_shares(chosen)[:, 0] - _shares(rest)[:, 0]) * _both(chosen, rest)


def fall(chosen: Counts, rest: Counts) -> Values:
    """By how much the share of the first category is lower in `chosen`, from -1 to 1."""
    return -rise(chosen, rest)


STATISTICS: dict[Kind, Callable[[Counts, Counts], Values]] = {"shares": population_stability, "rise": rise, "fall": fall}


def squared(values: Values, kind: Kind) -> Values:
    """The values on the scale of a variance. A PSI is on it already, since it grows with the square of a change."""
    return values if kind == "shares" else values**2


def _shares(counts: Counts, more: float = 0.0) -> Counts:
    counts = counts + more
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), np.finfo(float).tiny)


def _both(chosen: Counts, rest: Counts) -> Values:
    return ((chosen.sum(axis=1) > 0) & (rest.sum(axis=1) > 0)).astype(float)


ENOUGH = 10
FIRST_SPLITS, SPLITS_AT_ONCE = 200, 2_000
MOST_UNITS, LEAST_OF_THE_WINDOW = 1_000, 200
"""More sessions are put together at random, equally many to a unit of exchange, as long as the window keeps
LEAST_OF_THE_WINDOW units: as valid, and fast."""
MOST_REFERENCE = 20
"""Reference sessions for each session of the window; of more, as many are drawn. Further ones hardly add to the power."""

Units = Float[np.ndarray, "units columns"]


@dataclass(frozen=True)
class Columns:
    """The columns of one test in the counts of a session."""

    name: str
    kind: Kind
    first: int
    width: int

    def of(self, counts: np.ndarray) -> np.ndarray:
        return counts[:, self.first : self.first + self.width]


@dataclass(frozen=True)
class PermutationTest:
    """The result of one test."""

    value: float
    """The observed statistic."""
    p: float
    usual: float
    """Mean of the squared statistic over random splits."""
    spread: float
    """Variance of the squared statistic over random splits."""
    splits: int


def permutation_tests(
    window: Sequence[Units], reference: Sequence[Units], columns: Sequence[Columns], rng: np.random.Generator, least_p: float
) -> list[PermutationTest]:
    """The tests of a window. window, reference: counts by session for each stratum, in the same order of strata. least_p:
    smallest p-value that can come out; the number of splits is its reciprocal. Raises ValueError without sessions."""
    size = max(1, min(-(-sum(map(len, (*window, *reference))) // MOST_UNITS), sum(map(len, window)) // LEAST_OF_THE_WINDOW))
    strata = [_in_units(inside, outside, size, rng) for inside, outside in zip(window, reference, strict=True)]
    if not strata or any(not len(inside) or not len(outside) for inside, outside in strata):
        raise ValueError("a window and its reference need a session in every stratum")
    everything = sum(np.concatenate(pair).sum(axis=0, keepdims=True) for pair in strata)
    observed = sum(inside.sum(axis=0, keepdims=True) for inside, _ in strata)
    running = {each.name: _Test(each, observed, everything) for each in columns}
    active, splits, most = list(running.values()), 0, int(np.ceil(1 / least_p))
    while active and splits < most:
        count = min(FIRST_SPLITS if not splits else SPLITS_AT_ONCE, most - splits)
        wanted = np.unique(
            np.concatenate([np.arange(test.columns.first, test.columns.first + test.columns.width) for test in active])
        )
        chosen = np.zeros((count, everything.shape[1]))
        for pair in strata:
            chosen[:, wanted] += _random_sums(np.concatenate(pair)[:, wanted], len(pair[0]), count, rng)
        for test in active:
            test.add(test.statistic(chosen, everything - chosen))
        splits += count
        active = [test for test in active if test.reached < ENOUGH]
    return [running[each.name].result() for each in columns]


class _Test:
    def __init__(self, columns: Columns, observed: Counts, everything: Counts):
        self.columns, self.reached, self.splits, self.p = columns, 0, 0, 1.0
        self.value = float(self.statistic(observed, everything - observed)[0])
        self._first: Values | None = None

    def statistic(self, chosen: Counts, rest: Counts) -> Values:
        return STATISTICS[self.columns.kind](self.columns.of(chosen), self.columns.of(rest))

    def add(self, values: Values) -> None:
        if self._first is None:
            self._first = squared(values, self.columns.kind)
        # sums of floats in another order differ in the last digits: such a tie counts as reached
        hits = np.flatnonzero(values >= self.value - 1e-9 * max(1e-3, abs(self.value)))
        if self.reached + len(hits) >= ENOUGH:
            self.p = ENOUGH / (self.splits + int(hits[ENOUGH - self.reached - 1]) + 1)
        self.reached += len(hits)
        self.splits += len(values)

    def result(self) -> PermutationTest:
        p = self.p if self.reached >= ENOUGH else (self.reached + 1) / (self.splits + 1)
        first = self._first if self._first is not None else np.zeros(1)
        return PermutationTest(self.value, p, float(first.mean()), float(first.var()), self.splits)


def _in_units(inside: Units, outside: Units, size: int, rng: np.random.Generator) -> tuple[Units, Units]:
    """Both groups in units of `size` sessions at most, drawn at random. Sessions that fill no unit are left out."""
    if len(outside) > MOST_REFERENCE * len(inside):
        outside = outside[rng.permutation(len(outside))[: MOST_REFERENCE * len(inside)]]
    size = max(1, min(size, len(inside), len(outside)))
    return _grouped(inside, size, rng), _grouped(outside, size, rng)


def _grouped(sessions: Units, size: int, rng: np.random.Generator) -> Units:
    if size == 1:
        return sessions.astype(float)
    units = len(sessions) // size
    order = rng.permutation(len(sessions))[: units * size]
    return sessions[order].astype(float).reshape(units, size, -1).sum(axis=1)


def _random_sums(units: Units, chosen: int, count: int, rng: np.random.Generator) -> Counts:
    """Sums over `chosen` units drawn without replacement, `count` times."""
    draws = rng.random((count, len(units)), dtype=np.float32)
    places = np.argpartition(draws, chosen - 1, axis=1)[:, :chosen]
    picked = np.zeros((count, len(units)))
    np.put_along_axis(picked, places, 1.0, axis=1)
    return picked @ units
