"""Tail and quantile of the F distribution, without scipy.

    upper_tail(5.3, 3, 20)          # P(F > 5.3) with 3 and 20 degrees of freedom
    quantile(1e-4, 3, 20)           # the value that F exceeds with probability 1e-4

The tail is the regularised incomplete beta function, by its continued fraction (Press et al., Numerical Recipes, 6.4;
modified Lentz). Degrees of freedom may be fractions.
"""

from __future__ import annotations

import math

STEPS = 3_000
TINY = 1e-300
LARGEST = 1e12


def upper_tail(value: float, above: float, below: float) -> float:
    """P(F > value). above, below: degrees of freedom of numerator and denominator, each above 0; ValueError otherwise."""
    if not (above > 0 and below > 0):
        raise ValueError(f"an F distribution has degrees of freedom above 0, not {above} and {below}")
    if value <= 0:
        return 1.0
    return _incomplete_beta(below / (below + above * value), below / 2, above / 2)


def quantile(probability: float, above: float, below: float) -> float:
    """The value that F exceeds with this probability, between 0 and LARGEST, by bisection to 1e-6 of it."""
    low, high = 0.0, 1.0
    while upper_tail(high, above, below) > probability and high < LARGEST:
        low, high = high, high * 2
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if upper_tail(middle, above, below) > probability else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return scale * _continued_fraction(x, a, b) / a


def _continued_fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1))
    found = d
    for step in range(1, STEPS):
        for numerator in (step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step)),
                          -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1))):
            d, c = 1 / _not_zero(1 + numerator * d), _not_zero(1 + numerator / c)
            found *= c * d
        if abs(c * d - 1) < 1e-12:
            return found
    return found


def _not_zero(value: float) -> float:
    return value if abs(value) > TINY else TINY
