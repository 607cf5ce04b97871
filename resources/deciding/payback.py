"""What a faster drafter saves, and when it has saved what it cost.

    saved = saved_hours_a_day(decode_hours_a_day, gain=0.08)
    payback_days(cost_hours, saved)                               # None: never
    break_even_requests(cost_hours, days, hours_a_request, gain)

The time to decode is inversely proportional to the speed-up S, and S = tau / (1 + K c) with the same number of drafted tokens K
and cost of a draft c before and after. So a relative rise g of the acceptance length tau saves H (1 - S_old / S_new)
= H g / (1 + g) of the H device hours that a day's decoding takes.
"""

from __future__ import annotations

import math


def saved_hours_a_day(decode_hours_a_day: float, gain: float) -> float:
    """Device hours a day that a relative gain of the acceptance length saves; negative for a loss."""
    return decode_hours_a_day * gain / (1 + gain) if gain > -1 else -math.inf


def payback_days(cost_hours: float, saved_a_day: float) -> float | None:
    """Days until the saved hours are what was spent; None if they never are."""
    return cost_hours / saved_a_day if saved_a_day > 0 else None


def break_even_requests(cost_hours: float, days: float, hours_a_request: float, gain: float) -> float | None:
    """Requests a day from which on a gain pays back its cost within `days`; None for no gain."""
    saved_a_request = saved_hours_a_day(hours_a_request, gain)
    return cost_hours / (days * saved_a_request) if saved_a_request > 0 else None
