"""A predicted number with its lower bound, in the unit of what it predicts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float
    """Lower end of the one-sided 95 % interval of the fit or measurements behind it, without the error of extrapolation."""
    says: str
    """Source of the number, in words."""

    def times(self, ratio: float, low_ratio: float) -> Estimate:
        """The estimate corrected by the ratio that earlier predictions were off by, and its lower bound by the ratio's."""
        return Estimate(self.value * ratio, self.low * (low_ratio if self.low > 0 else ratio), self.says)
