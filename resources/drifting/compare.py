"""Compares windows of days with the reference window: every test on every window, and which of them alarm (Holm's procedure).

Guarantee: on a day on which nothing has changed, the probability of any alarm is at most `rate`, under any dependence between
tests, windows and days: each p-value is valid for its window alone, and Holm's procedure needs no more (Holm 1979). So at most
1,000 times `rate` of 1,000 quiet days are expected to alarm, on average over reference windows. A sum of expectations needs no
independence, so looking every day costs nothing; evidence is not added up from day to day but by the longer windows. (A false
discovery rate over all days cannot be bounded by a procedure that sooner or later alarms: Dandapanthula and Ramdas 2025.
Benjamini-Hochberg needs independent or positively dependent tests; these look at the same sessions.)

Two limits: a day that is compared again with other rows is another look, with a probability of its own. And a test with
nothing to count, or with all counts in one category, leaves Holm's family; which tests stay depends on the rows, so the bound
is exact for a fixed family only.

A test compares means over sessions. Counted by rows, few long sessions would decide: their number varies much from day to
day, and a quarter of the sessions, of one row each among sessions of twenty, would be one row in sixty. A session in which a
test has nothing to count stays at 0 and takes no part in it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property

import numpy as np
from jaxtyping import Float

from model_ops.jobs import counted
from resources.drifting.days import Reference, strata_of, window_of
from resources.drifting.dispersion import Dispersion, bound_of, day_level_p, dispersion
from resources.drifting.permutation import Columns, PermutationTest, permutation_tests
from resources.drifting.settings import DriftSettings

Counts = Mapping[date, np.ndarray]
"""Counts [sessions, columns] of each day."""


@dataclass(frozen=True)
class Result:
    """One test of one window, which ends with `day`."""

    day: date
    window_days: int
    test: str
    value: float | None = None
    """PSI for `shares`, else the difference of a share."""
    bound: float | None = None
    """About the value from which on the test alarms."""
    p: float | None = None
    """The larger of the p-values over sessions and over days."""
    level: float | None = None
    """The largest p that alarms; None where all rows count alike (p = 1)."""
    alarm: bool = False
    dispersion: float | None = None
    """How much more days differ than their sessions explain, 1 for no more; None: the reference has too few days to say."""
    sessions: int = 0
    reference_sessions: int = 0
    problem: str = ""
    """Why the window was not compared; then the numbers are None."""


class WindowComparison:
    """The reference's counts, and what each day of the reference says about the others."""

    def __init__(
        self,
        reference: Reference,
        counts: Counts,
        columns: Sequence[Columns],
        settings: DriftSettings,
        rate: float,
        name: str = "",
    ):
        """counts: of the reference's comparison days. rate: of days with an alarm though nothing changed. name: seeds the
        random splits, so that the same traffic gives the same p-values."""
        self.reference, self.columns, self.settings, self.rate = reference, list(columns), settings, rate
        self._counts = self._weighted({day: counts[day] for day in reference.comparison if day in counts})
        self._name = name

    @cached_property
    def dispersions(self) -> dict[str, Dispersion | None]:
        """How much the reference's days differ, by test."""
        by_test = dispersion(self._counts, list(self._counts), self.columns, self._rng(self.reference.end, 0))
        return {each.name: days for each, days in zip(self.columns, by_test, strict=True)}

    def of_day(self, day: date, counts: Counts) -> list[Result]:
        """Every test on every window that ends with `day`. counts: of the days of these windows.

        Together they alarm on a quiet day with a probability of at most `rate`.
        """
        counts = self._weighted(counts)
        results: list[Result] = []
        tested: list[tuple[int, Columns, PermutationTest]] = []
        for length in self.settings.windows:
            window = window_of(day, length, counts, self.reference.end)
            if length > 1 and len(window) < 2:
                continue  # the same as the window of one day, or nothing
            strata = strata_of(window, list(self._counts))
            inside, outside = [
                [_together(source, days[side]) for days in strata] for side, source in ((0, counts), (1, self._counts))
            ]
            blank = Result(day, length, "", sessions=sum(map(len, inside)), reference_sessions=sum(map(len, outside)))
            problem = self._problem(blank)
            if problem:
                results += [replace(blank, test=each.name, problem=problem) for each in self.columns]
                continue
            seen = [each for each in self.columns if _has_counts(each, inside) and _has_counts(each, outside)]
            results += [
                replace(blank, test=each.name, problem=self._unseen(each, inside, outside))
                for each in self.columns
                if each not in seen
            ]
            able = [each for each in seen if _can_differ(each, [*inside, *outside])]
            results += [replace(blank, test=each.name, value=0.0, p=1.0) for each in seen if each not in able]
            if able:
                tests = permutation_tests(inside, outside, able, self._rng(day, length), self._least_p)
                for each, permutation in zip(able, tests, strict=True):
                    tested.append((len(results), each, permutation))
                    results.append(replace(blank, test=each.name))
        return self._decided(results, tested)

    def _weighted(self, counts: Counts) -> Counts:
        return {day: sessions_alike(of_day, self.columns) for day, of_day in counts.items()}

    @property
    def _least_p(self) -> float:
        """Half of the smallest level of Holm's procedure: an alarm leaves room for one random split that reaches it."""
        return self.rate / (2 * len(self.columns) * len(self.settings.windows))

    def _decided(self, results: list[Result], tested: list[tuple[int, Columns, PermutationTest]]) -> list[Result]:
        p_values = []
        for _, each, test in tested:
            days = self.dispersions[each.name]
            p_values.append(max(test.p, day_level_p(test, each, days)) if days else test.p)
        for (place, each, test), p, decision in zip(tested, p_values, holm(p_values, self.rate), strict=True):
            days = self.dispersions[each.name]
            results[place] = replace(
                results[place],
                value=test.value,
                p=p,
                level=decision.level,
                alarm=decision.alarm,
                bound=bound_of(test, each, days, self.rate / len(tested)),
                dispersion=days.factor if days else None,
            )
        return results

    def _problem(self, blank: Result) -> str:
        least = self.settings.least_sessions
        for count, where in ((blank.sessions, "the window"), (blank.reference_sessions, "the reference")):
            if count < least:
                return f"{where} has {counted(count, 'session')}, fewer than drift.least_sessions ({least})"
        return ""

    def _unseen(self, columns: Columns, inside: Sequence[np.ndarray], outside: Sequence[np.ndarray]) -> str:
        groups = (("the window", inside), ("the reference", outside))
        where = [name for name, strata in groups if not _has_counts(columns, strata)]
        return f"{' and '.join(where)} {'have' if len(where) > 1 else 'has'} nothing to count for it"

    def _rng(self, day: date, length: int) -> np.random.Generator:
        digest = hashlib.sha256(f"{self._name}/{self.reference.start}/{day}/{length}".encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def _together(counts: Counts, days: Sequence[date]) -> np.ndarray:
    return np.concatenate([counts[day] for day in days])


def _can_differ(columns: Columns, strata: Sequence[np.ndarray]) -> bool:
    """Whether window and reference together have counts in two categories. A test that cannot differ is not one of the many."""
    return bool(np.count_nonzero(sum(columns.of(part).sum(axis=0) for part in strata)) > 1)


def _has_counts(columns: Columns, strata: Sequence[np.ndarray]) -> bool:
    return any(columns.of(part).any() for part in strata)


@dataclass(frozen=True)
class HolmDecision:
    """Whether a test alarms."""

    alarm: bool
    level: float
    """The largest p-value with which the test alarms, given the others."""


def holm(p_values: Sequence[float], rate: float) -> list[HolmDecision]:
    """A decision for each p-value, in their order. Raises ValueError for a p-value or rate outside of (0, 1]."""
    if not 0 < rate <= 1 or any(not 0 < p <= 1 for p in p_values):
        raise ValueError("p-values and the rate are above 0 and at most 1")
    decided = [HolmDecision(False, rate)] * len(p_values)
    stopped: float | None = None
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        level = rate / (len(p_values) - rank) if stopped is None else stopped
        alarm = stopped is None and p_values[place] <= level
        if not alarm and stopped is None:
            stopped = level
        decided[place] = HolmDecision(alarm, level)
    return decided


def sessions_alike(
    counts: Float[np.ndarray, "sessions columns"], columns: Sequence[Columns]
) -> Float[np.ndarray, "sessions columns"]:
    """The counts as shares of each session."""
    weighted = counts.astype(float)
    for each in columns:
        part = each.of(weighted)
        part /= np.maximum(part.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    return weighted
