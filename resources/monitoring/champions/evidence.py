"""Evidence that a mean is worse than a bound, which may be looked at after every observation.

A bet against the claim "given the past, the mean surprise is at most 0": a stake s turns evidence E into E (1 + s surprise). If
the claim is true, E is a supermartingale, so by Ville's inequality it ever reaches 1 / alpha with probability alpha at most,
whatever the distribution and the dependence between observations (Waudby-Smith and Ramdas, arXiv 2010.09686). The mean of
several bets is a bet, too: over stakes, since the best stake is not known, and over the slots of time in which a fall may
begin, so that good hours before a fall do not pay for it (e-detectors: Shin, Ramdas and Rinaldo, arXiv 2203.03532; here the
weights add up to 1, which bounds the probability of any false alarm)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from jaxtyping import Float, Int

STAKES = np.array([0.02, 0.05, 0.1, 0.25, 0.5, 0.95])
SLOTS = 24
"""Slots of the watched time in which a fall may begin."""


def evidence(surprises: Float[np.ndarray, " n"], slots: Int[np.ndarray, " n"]) -> float:
    """surprises: each at least -1; above 0 where an observation is worse than the bound. slots: 0 to SLOTS - 1, when each was
    made. Raises ValueError for a surprise below -1."""
    if len(surprises) and surprises.min() < -1:
        raise ValueError("a surprise below -1 could make evidence negative")
    won = np.log1p(STAKES[:, None] * surprises[None, :])
    by_slot = np.zeros((len(STAKES), SLOTS))
    for slot in range(SLOTS):
        by_slot[:, slot] = won[:, slots == slot].sum(axis=1)
    since = np.cumsum(by_slot[:, ::-1], axis=1)  # a bet that begins in the slot, and those before it
    most = float(max(since.max(), 0.0))
    return float(np.exp(min(700.0, most + math.log(np.exp(since - most).mean()))))


def upper_mean(shares: Float[np.ndarray, " n"], alpha: float) -> float:
    """What the mean of independent shares (0 to 1) is below with probability 1 - alpha: the empirical Bernstein bound of Maurer
    and Pontil (arXiv 0907.3740, theorem 4). 1 for fewer than two."""
    n = len(shares)
    if n < 2:
        return 1.0
    log = math.log(2 / alpha)
    spread = math.sqrt(2 * float(shares.var(ddof=1)) * log / n)
    return min(1.0, float(shares.mean()) + spread + 7 * log / (3 * (n - 1)))


SIGNALS = ("acceptance", "server_errors", "failed_answers", "broken_answers", "refusals", "bad_feedback")
"""What is watched. The rate of false alarms is shared by all of them, half for the bounds and half for the evidence."""


def alpha_of(false_alarm: float) -> float:
    """The share of the rate that a bound, or the evidence, of one signal has."""
    return false_alarm / (2 * len(SIGNALS))


@dataclass(frozen=True)
class WatchSignal:
    signal: str
    value: float | None = None
    """What was served, with its 95 % interval (low, high)."""
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    """The worst that it may be."""
    evidence: float = 1.0
    """Evidence that the value is worse; it counts as shown from `needed` on."""
    needed: float = float("inf")
    words: str = ""
    """The result in one sentence."""
    problem: str = ""
    """Why there is no result."""

    @property
    def is_outside(self) -> bool:
        return self.evidence >= self.needed


LONGEST_WINDOW = timedelta(hours=1)
"""A longer window belongs to no block."""


@dataclass(frozen=True)
class MetricsWindow:
    start: datetime
    end: datetime
    drafts: int | None = None
    accepted_tokens: int | None = None
    """`drafts`, `accepted_tokens`: None where the server reports none; so requests (that ended) and errors."""
    requests: int | None = None
    errors: int | None = None


@dataclass(frozen=True)
class WindowBlock:
    """The sums of the windows that begin in it."""

    start: datetime
    drafts: int
    accepted_tokens: int
    requests: int
    errors: int

    @property
    def tau(self) -> float:
        """Acceptance length. Raises ZeroDivisionError without drafts."""
        return 1 + self.accepted_tokens / self.drafts

    @property
    def error_share(self) -> float:
        """Requests without an answer by a fault of the server, of all of them."""
        return self.errors / max(self.requests, self.errors)


def blocks_of(windows: Sequence[MetricsWindow], minutes: int, until: datetime | None = None) -> list[WindowBlock]:
    """Blocks in order, aligned to whole multiples since 1970. until: only blocks that are over by then."""
    seconds = 60 * minutes
    inside: dict[int, list[MetricsWindow]] = {}
    for window in windows:
        if window.end > window.start and window.end - window.start <= LONGEST_WINDOW:
            inside.setdefault(int(window.start.timestamp() // seconds), []).append(window)
    blocks = [_block(datetime.fromtimestamp(place * seconds, UTC), inside[place]) for place in sorted(inside)]
    return [each for each in blocks if until is None or each.start + timedelta(minutes=minutes) <= until]


def _block(start: datetime, windows: Sequence[MetricsWindow]) -> WindowBlock:
    return WindowBlock(
        start,
        *(
            sum(getattr(window, name) or 0 for window in windows)
            for name in ("drafts", "accepted_tokens", "requests", "errors")
        ),
    )
