"""Whether the served acceptance length of a new champion is below what it should be.

From windows: the mean of days of the champion before, its lower end at the given probability, by the hour of the day, less
`acceptance_drop`; not more than what the release's own report says, since who approved it knew that. The surprise of a block is
its distance below that in units of three standard deviations of the champion's blocks (or of the tolerated fall, if that is
more), cut at 1 in both directions, so that no block decides alone; if blocks scatter evenly around their mean, cutting moves
the mean to neither side. From the report: the distance over what is accepted at the bound."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from model_ops.jobs import counted
from resources.drifting import f_quantile
from resources.monitoring.champions.evidence import (
    SLOTS,
    MetricsWindow,
    WatchSignal,
    WindowBlock,
    alpha_of,
    blocks_of,
    evidence,
    upper_mean,
)
from resources.releases import WatchSettings

MINUTES = (5, 10, 20, 30, 60)
"""Lengths of blocks; the shortest is taken whose scatter is at most half of the tolerated fall."""
FROM_REPORT_MINUTES = 10
LEAST_DRAFTS = 100
"""A block with fewer says too little."""
LEAST_DAYS = 3
LEAST_DAYS_OF_AN_HOUR = 3
LATE = timedelta(minutes=2)
"""How long after its end a window may be written."""


@dataclass(frozen=True)
class Should:
    """What the acceptance length should be."""

    level: float
    """Expected mean."""
    low: float
    """Lower end of the mean's interval."""
    minutes: int
    words: str
    """Source of the numbers, in words."""
    by_hour: Mapping[int, float] = field(default_factory=dict)
    """Factor of the level by hour of the day; 1 for hours without one."""
    spread: float | None = None
    """Spread of blocks, as a share of the level; None: not known."""

    def bound(self, block: WindowBlock, drop: float) -> float:
        """The least acceptance length of a block that is as it should be, on average; at least 1."""
        return max(1.0, (1 - drop) * self.low * self.by_hour.get(block.start.hour, 1.0))

    def surprise(self, block: WindowBlock, drop: float) -> float:
        bound = self.bound(block, drop)
        unit = (
            max(bound - 1, 1e-9)
            if self.spread is None
            else (max(3 * self.spread, drop) * self.level * self.by_hour.get(block.start.hour, 1.0))
        )
        return float(np.clip((bound - block.tau) / unit, -1, 1))


def from_windows(
    windows: Sequence[MetricsWindow], release: str, settings: WatchSettings, report: tuple[float, float] | None = None
) -> Should | None:
    """What the windows of the champion before say; None if they have fewer than LEAST_DAYS days with drafts, or days so
    different that the lower end of their mean is below what is tolerated. report: see from_report."""
    reference = None
    for minutes in MINUTES:
        blocks = [each for each in blocks_of(windows, minutes) if each.drafts >= LEAST_DRAFTS]
        reference = _from_blocks(blocks, minutes, release, settings) or reference
        if reference is not None and reference.spread is not None and reference.spread <= settings.acceptance_drop / 2:
            break
    if reference is None or report is None or report[1] >= reference.low:
        return reference
    return replace(
        reference, low=report[1], words=f"{reference.words}, its own report {report[0]:.2f} (from {report[1]:.2f} on)"
    )


def from_report(value: float, low: float) -> Should:
    """What the release's own report says: its acceptance length and the lower end of the interval."""
    return Should(value, low, FROM_REPORT_MINUTES, f"its report's {value:.2f} (from {low:.2f} on)")


def compare_acceptance(
    windows: Sequence[MetricsWindow], should: Should, settings: WatchSettings, since: datetime, until: datetime
) -> WatchSignal:
    """The finding on the champion's windows from `since` on. until: now."""
    blocks = [each for each in blocks_of(windows, should.minutes, until - LATE) if each.drafts >= LEAST_DRAFTS]
    drop, needed = settings.acceptance_drop, 1 / alpha_of(settings.false_alarm)
    if not blocks:
        return WatchSignal(
            "acceptance", problem=f"no {should.minutes} minutes with at least {LEAST_DRAFTS} drafts are over yet", needed=needed
        )
    taus = np.array([each.tau for each in blocks])
    drafts = sum(each.drafts for each in blocks)
    value = 1 + sum(each.accepted_tokens for each in blocks) / drafts
    half = _half_width(taus)
    bound = float(np.average([should.bound(each, drop) for each in blocks], weights=[each.drafts for each in blocks]))
    strength = evidence(
        np.array([should.surprise(each, drop) for each in blocks]), slots_of([each.start for each in blocks], since, settings)
    )
    interval = "" if math.isnan(half) else f" (95 % interval {value - half:.2f} to {value + half:.2f})"
    words = (
        f"the served acceptance length is {value:.2f}{interval} over {drafts:,} drafts in {counted(len(blocks), 'block')} of "
        f"{should.minutes} minutes, and at least {bound:.2f} is wanted: {should.words}, less {drop:z.0%}"
    )
    low, high = (None, None) if math.isnan(half) else (value - half, value + half)
    return WatchSignal("acceptance", value, low, high, bound, strength, needed, words)


def slots_of(times: Sequence[datetime], since: datetime, settings: WatchSettings) -> np.ndarray:
    """The slot of the watched time in which each moment lies."""
    shares = [(each - since).total_seconds() / (3_600 * settings.hours) for each in times]
    return np.clip((np.array(shares) * SLOTS).astype(int), 0, SLOTS - 1)


def _from_blocks(blocks: Sequence[WindowBlock], minutes: int, release: str, settings: WatchSettings) -> Should | None:
    days = [(blocks[-1].start - each.start) // timedelta(days=1) for each in blocks]  # of 24 hours each, from the last one on
    if len(set(days)) < LEAST_DAYS:
        return None
    by_hour: dict[int, list[WindowBlock]] = {}
    for each in blocks:
        by_hour.setdefault(each.start.hour, []).append(each)
    level = float(np.mean([each.tau for each in blocks]))
    profile = {
        hour: float(np.mean([each.tau for each in values])) / level
        for hour, values in by_hour.items()
        if len({each.start.date() for each in values}) >= LEAST_DAYS_OF_AN_HOUR
    }
    levelled = np.array([each.tau / profile.get(each.start.hour, 1.0) for each in blocks])
    of_days = np.array([levelled[np.array(days) == day].mean() for day in sorted(set(days))])
    mean = float(of_days.mean())
    t = math.sqrt(f_quantile(2 * alpha_of(settings.false_alarm), 1, len(of_days) - 1))
    low = mean - t * float(of_days.std(ddof=1)) / math.sqrt(len(of_days))
    if low < (1 - settings.acceptance_drop) * mean:
        return None
    return Should(
        mean,
        low,
        minutes,
        f"release {release} had {mean:.2f} (from {low:.2f} on) over {counted(len(of_days), 'day')} before",
        profile,
        float(levelled.std(ddof=1)) / mean,
    )


SESSION_SIGNALS = {
    "failed_answers": "answers that are errors or empty",
    "broken_answers": "answers that are cut off, repeat themselves or have broken tool calls",
    "refusals": "refused answers",
    "bad_feedback": "answers with bad feedback",
}
LEAST_BEFORE = 50
"""Fewest sessions, or blocks, of the champion before that say what should be."""
ERROR_MINUTES = 10


def compare_sessions(
    new: Sequence[dict[str, Any]], old: Sequence[dict[str, Any]], settings: WatchSettings, since: datetime
) -> list[WatchSignal]:
    """new, old: one row for each session that is over: `last` (time of its last request), and its share by signal."""
    signals = []
    for signal, what in SESSION_SIGNALS.items():
        shares, usual = (np.array([row[signal] for row in rows], dtype=float) for rows in (new, old))
        last = [row["last"] for row in new]
        signals.append(_compared((signal, what, "session"), shares, usual, last, settings, since))
    return signals


def compare_errors(
    new: Sequence[MetricsWindow], old: Sequence[MetricsWindow], settings: WatchSettings, since: datetime, until: datetime
) -> WatchSignal:
    """Requests without an answer, as the servers count them; until: now."""
    counted_windows = ([window for window in windows if window.errors is not None] for windows in (new, old))
    blocks, usual = (
        [each for each in blocks_of(windows, ERROR_MINUTES, end) if each.requests or each.errors]
        for windows, end in zip(counted_windows, (until - LATE, None), strict=True)
    )
    shares, of_usual = (np.array([each.error_share for each in group]) for group in (blocks, usual))
    what, unit = "requests without an answer by a fault of the server", f"block of {ERROR_MINUTES} minutes"
    times = [each.start for each in blocks]
    return _compared(("server_errors", what, unit), shares, of_usual, times, settings, since)


def _compared(
    named: tuple[str, str, str],
    shares: np.ndarray,
    usual: np.ndarray,
    times: Sequence[datetime],
    settings: WatchSettings,
    since: datetime,
) -> WatchSignal:
    """named: the signal, what it counts, and of which unit."""
    (signal, what, unit), alpha, problem = named, alpha_of(settings.false_alarm), ""
    bound = upper_mean(usual, alpha) + settings.bad_answers_rise
    if len(usual) < LEAST_BEFORE:
        problem = f"the champion before has {_counted(len(usual), unit)} to compare with, fewer than {LEAST_BEFORE}"
    elif not len(shares):
        problem = f"no {unit} of the new champion is over yet"
    elif bound >= 1:
        problem = "too little is known of the champion before, or all of it is bad"
    if problem:
        return WatchSignal(signal, needed=1 / alpha, problem=problem)
    value, half = float(shares.mean()), _half_width(shares)
    low, high = (None, None) if math.isnan(half) else (max(0.0, value - half), min(1.0, value + half))
    interval = "" if low is None else f" (95 % interval {low:z.1%} to {high:z.1%})"
    words = (
        f"{value:z.1%}{interval} are {what}, as a mean over {_counted(len(shares), unit)}, and at most {bound:z.1%} is "
        f"wanted: the champion before had {usual.mean():z.1%} in {_counted(len(usual), unit)}"
    )
    strength = evidence((shares - bound) / bound, slots_of(times, since, settings))
    return WatchSignal(signal, value, low, high, bound, strength, 1 / alpha, words)


def _half_width(values: np.ndarray) -> float:
    """Of the 95 % interval of a mean; NaN for one value."""
    return 1.96 * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _counted(number: int, unit: str) -> str:
    name, _, rest = unit.partition(" ")
    return f"{counted(number, name)}{' ' if rest else ''}{rest}"
