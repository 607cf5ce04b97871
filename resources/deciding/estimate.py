"""A predicted number with its lower bound, in the unit of what it predicts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """low: the lower end of the one-sided 95 % interval of the fit or the measurements that it is made from; what an
    extrapolation adds is not in it. says: where the number comes from, in words."""

    value: float
    low: float
    says: str

    def times(self, ratio: float, low_ratio: float) -> Estimate:
        """The estimate corrected by the ratio that earlier predictions were off by, and its lower bound by the ratio's."""
        return Estimate(self.value * ratio, self.low * (low_ratio if self.low > 0 else ratio), self.says)
