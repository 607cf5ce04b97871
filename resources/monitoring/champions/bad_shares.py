"""Whether answers of a new champion are bad more often than those of the champion before it.

The unit is the session (rows of a session are alike), and for errors that the server counts itself a block of minutes. What is
tolerated is the upper end of the champion's mean share plus `bad_answers_rise`.
"""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np

from model_ops.jobs import counted
from resources.monitoring.champions.blocks import MetricsWindow, blocks_of
from resources.monitoring.champions.evidence import WatchSignal, alpha_of, evidence, upper_mean
from resources.monitoring.champions.served_acceptance import LATE, slots_of
from resources.releases import WatchSettings

SESSION_SIGNALS = {
    "failed_answers": "answers that are errors or empty",
    "broken_answers": "answers that are cut off, repeat themselves or have broken tool calls",
    "refusals": "refused answers",
    "bad_feedback": "answers with bad feedback",
}
LEAST_SESSIONS = 50
"""Sessions of the champion before that say what should be."""
LEAST_BLOCKS = 50
ERROR_MINUTES = 10


def compare_sessions(
    new: Sequence[dict[str, Any]], old: Sequence[dict[str, Any]], settings: WatchSettings, since: datetime
) -> list[WatchSignal]:
    """new, old: one row for each session that is over: `last` (time of its last request), and its share by signal."""
    signals = []
    for signal, what in SESSION_SIGNALS.items():
        shares, usual = (np.array([row[signal] for row in rows], dtype=float) for rows in (new, old))
        signals.append(
            _compared(signal, what, "session", shares, usual, LEAST_SESSIONS, [row["last"] for row in new], settings, since)
        )
    return signals


def compare_errors(
    new: Sequence[MetricsWindow], old: Sequence[MetricsWindow], settings: WatchSettings, since: datetime, until: datetime
) -> WatchSignal:
    """Requests without an answer, as the servers count them; until: now."""
    blocks, usual = (
        [
            each
            for each in blocks_of([window for window in windows if window.errors is not None], ERROR_MINUTES, end)
            if each.requests or each.errors
        ]
        for windows, end in ((new, until - LATE), (old, None))
    )
    shares, of_usual = (np.array([each.error_share for each in group]) for group in (blocks, usual))
    what, unit = "requests without an answer by a fault of the server", f"block of {ERROR_MINUTES} minutes"
    times = [each.start for each in blocks]
    return _compared("server_errors", what, unit, shares, of_usual, LEAST_BLOCKS, times, settings, since)


def _compared(
    signal: str,
    what: str,
    unit: str,
    shares: np.ndarray,
    usual: np.ndarray,
    least: int,
    times: Sequence[datetime],
    settings: WatchSettings,
    since: datetime,
) -> WatchSignal:
    alpha = alpha_of(settings.false_alarm)
    if len(usual) < least:
        return WatchSignal(
            signal,
            needed=1 / alpha,
            problem=f"the champion before has {_counted(len(usual), unit)} to compare with, fewer than {least}",
        )
    if not len(shares):
        return WatchSignal(signal, needed=1 / alpha, problem=f"no {unit} of the new champion is over yet")
    bound = upper_mean(usual, alpha) + settings.bad_answers_rise
    if bound >= 1:
        return WatchSignal(signal, needed=1 / alpha, problem="too little is known of the champion before, or all of it is bad")
    value = float(shares.mean())
    half = 1.96 * float(shares.std(ddof=1)) / math.sqrt(len(shares)) if len(shares) > 1 else math.nan
    low, high = (None, None) if math.isnan(half) else (max(0.0, value - half), min(1.0, value + half))
    interval = "" if low is None else f" (95 % interval {low:z.1%} to {high:z.1%})"
    words = (
        f"{value:z.1%}{interval} are {what}, as a mean over {_counted(len(shares), unit)}, and at most {bound:z.1%} is "
        f"wanted: the champion before had {usual.mean():z.1%} in {_counted(len(usual), unit)}"
    )
    return WatchSignal(
        signal, value, low, high, bound, evidence((shares - bound) / bound, slots_of(times, since, settings)), 1 / alpha, words
    )


def _counted(number: int, unit: str) -> str:
    name, _, rest = unit.partition(" ")
    return f"{counted(number, name)}{' ' if rest else ''}{rest}"
