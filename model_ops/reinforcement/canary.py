"""Compares what an engine sampled, right after it took the weights, with what the model itself says of these tokens.

    canary = Canary()
    gap = canary.check(read(log_probs, batch), exact=False, number=0)      # raises ModelError

- **Log-probabilities.** Where both sides compute in float32 on a CPU, a difference above CANARY_GAP is an error. Elsewhere the
  first mean, of equal weights, is the noise of two implementations, at most FIRST_GAP; later means may be NOISE_TIMES of it.
- **Temperature.** x is the derivative of a token's log-probability by the log of the inverse temperature. Differences that
  another temperature makes are a multiple of x: the slope by least squares. Of tokens that are sampled as asked, sum(x) is 0
  with the variance sum(v), v that of x over the vocabulary: sum(x) / sum(v) estimates how much colder the sampler was, also
  where its log-probabilities do not say so. Either is refused above TILT where that is no chance: beyond SURE deviations, by
  Freedman's bound for martingales (1975), which also holds for few tokens.

Measured on 10 million weights, mean nats by token and slope: bfloat16 0.013 and 0.001, int8 0.019 and 0.000, int4 0.093 and
-0.010; a temperature of 0.9 in place of 1 has 0.13 and 0.11, one of 0.7 has 0.30 and 0.27.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from torch import Tensor

from model_ops.answers import Rollout
from model_ops.jobs import ModelError
from model_ops.reinforcement.rollout_batches import RolloutBatch

CANARY_GAP = 1e-4
"""Nats by token: float32 on a CPU differs by some 1e-5 (3e-5 measured)."""
FIRST_GAP, NOISE_TIMES, LEAST_BOUND = 0.25, 4, 0.02
"""Bounds of mean nats by token: of the first reading, of later ones as a multiple of it, and the lowest of these."""
TILT, SURE, LEAST_TOKENS = 0.07, 5.0, 32
CANARY_ROLLOUTS, CANARY_TOKENS = 4, 1_024
"""Rollouts are read until there are so many of both."""
STEP = 0.1
"""Of the inverse temperature, for derivatives by differences."""
REMEDY = "nothing was learnt from this round. Start the server again; without one this is a bug: report it"


class Reading(NamedTuple):
    """float64, of each sampled token."""

    difference: Tensor
    """Log-probability by the engine less that by the model; NaN where the engine gave none."""
    x: Tensor
    v: Tensor


def canary_rollouts(groups: Sequence[Sequence[Rollout]]) -> list[Rollout]:
    """The first rollouts of each group, then the second ones, because another server may have answered each prompt."""
    chosen, tokens = list[Rollout](), 0
    for each in (rollout for place in zip_longest(*groups) for rollout in place if rollout is not None):
        if len(chosen) >= CANARY_ROLLOUTS and tokens >= CANARY_TOKENS:
            break
        if count := int(each.sampled.sum()):
            chosen, tokens = [*chosen, each], tokens + count
    return chosen


def read(log_probs: Callable[[float], Tensor], batch: RolloutBatch) -> Reading:
    """log_probs: of each label by the model, of a factor of the temperature."""
    sampled = batch.owners >= 0
    own, colder, hotter = (log_probs(1 / (1 + step))[sampled].double() for step in (0.0, STEP, -STEP))
    x, v = (colder - hotter) / (2 * STEP), (2 * own - colder - hotter) / STEP**2
    return Reading(batch.sampler[sampled].double() - own, x, v)


class Canary:
    """noise: mean difference of the first reading outside float32. It is part of the plan's state."""

    def __init__(self) -> None:
        self.noise: float | None = None

    def check(self, reading: Reading, exact: bool, number: int) -> float:
        """The largest difference. Raises ModelError for a round of other weights or of another temperature."""
        gaps = reading.difference.abs()
        most = FIRST_GAP if self.noise is None else max(LEAST_BOUND, NOISE_TIMES * self.noise)
        found, most = (float(gaps.max()), CANARY_GAP) if exact else (float(gaps.nanmean()), most)
        if not found <= most:
            raise ModelError(
                f"round {number}: the engine gave tokens log-probabilities that differ from the model's own by {found:.2g} "
                f"{'at most' if exact else 'on average'} (allowed: {most:.2g}), so it has other weights, another temperature "
                f"or other tokens; {REMEDY}"
            )
        for what, tilt in (("log-probabilities", said_tilt(reading)), ("tokens", sampled_tilt(reading))):
            if abs(tilt) > TILT:
                raise ModelError(
                    f"round {number}: the engine's {what} are those of another temperature, or of top-p or top-k: the inverse "
                    f"temperature is off by about {tilt:+z.0%} (allowed: {TILT:z.0%}); {REMEDY}"
                )
        if self.noise is None and not exact:
            self.noise = found
        return float(gaps.max())


def said_tilt(reading: Reading) -> float:
    """How much colder than asked the log-probabilities are, as a share of the inverse temperature; 0 if that may be chance."""
    known = ~reading.difference.isnan()
    difference, x = reading.difference[known], reading.x[known]
    slope = (difference * x).sum() / x.square().sum()
    deviation = ((difference - slope * x).square().mean() / x.square().sum()).sqrt()
    return float(slope) if len(x) >= LEAST_TOKENS and slope.abs() > SURE * deviation else 0.0


def sampled_tilt(reading: Reading) -> float:
    """As said_tilt, of the tokens themselves."""
    moved, variance = reading.x.sum(), reading.v.sum()
    deviation = (variance + reading.x.abs().max() * moved.abs() / 3).sqrt()
    return float(moved / variance) if moved.abs() > SURE * deviation else 0.0
