"""Compares what an engine sampled, right after it took the weights, with what the model itself says of these tokens.

- **Log-probabilities.** Where both sides compute in float32 on a CPU, a difference above CANARY_GAP is an error. Elsewhere the
  first mean, of equal weights, is the noise of two implementations, at most FIRST_GAP; later means may be NOISE_TIMES of it.
- **Temperature.** x is the derivative of a token's log-probability by the log of the inverse temperature. Differences that
  another temperature makes are a multiple of x: the slope by least squares. Of tokens that are sampled as asked, sum(x) is 0
  with the variance sum(v), v that of x over the vocabulary: sum(x) / sum(v) estimates how much colder the sampler was, also
  where its log-probabilities do not say so. Either is refused above TILT where that is no chance: beyond SURE deviations, by
  Freedman's bound for martingales (1975), which also holds for few tokens.

Measured on 10 million weights, mean nats by token and slope: bfloat16 0.013 and 0.001, int8 0.019 and 0.000, int4 0.093 and
-0.010; a temperature of 0.9 in place of 1 has 0.13 and 0.11, one of 0.7 has 0.30 and 0.27."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model_ops.answers import Engine, Rollout
from model_ops.jobs import ModelError
from model_ops.losses import token_nll
from model_ops.machine import Precision, products_in
from model_ops.parallel import World
from model_ops.reinforcement.policy_loss import PolicyLoss
from model_ops.reinforcement.rollout_batches import LearntRollout, RolloutBatch, group_documents, rollout_batches

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
        gap, most = (float(gaps.max()), CANARY_GAP) if exact else (float(gaps.nanmean()), most)
        if not gap <= most:
            raise ModelError(
                f"round {number}: the engine gave tokens log-probabilities that differ from the model's own by {gap:.2g} "
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
            self.noise = gap
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


class PolicyReader:
    """The model in training, as a canary and a reference read it. loss: has the temperature of the round."""

    def __init__(self, model: nn.Module, loss: PolicyLoss, precision: Precision, world: World):
        self._model, self._loss, self._precision, self._world = model, loss, precision, world

    @torch.no_grad()
    def log_probs(self, batch: RolloutBatch, factor: float = 1.0) -> Tensor:
        """The model's log-probability of each label, at a factor of the temperature; 0 elsewhere."""
        there, temperature = batch.to(self._world.device), factor * self._loss.temperature
        with products_in(self._precision, self._world.device):
            nll, labelled = self._world.evaluate(self._model, lambda: token_nll(self._model, there, temperature))
        return torch.zeros_like(there.sampler).index_copy(0, labelled, -nll).cpu()

    def reading(self, batch: RolloutBatch) -> Reading:
        """Of the canary, by every process."""
        self._model.eval()
        reading = read(partial(self.log_probs, batch), batch)
        self._model.train()
        return reading


class RoundCanary:
    """The canary of a training's rounds. On a mesh every process reads, and the first one compares."""

    def __init__(self, reader: PolicyReader, engine: Engine, precision: Precision, world: World):
        self.compared, self._engine, self._precision, self._world = Canary(), engine, precision, world
        world.parts["canary"] = reader.reading

    def __call__(self, rollouts: Sequence[Rollout], number: int) -> float:
        """Largest difference of log-probabilities of the engine and the model, by token; NaN where nothing was sampled. Raises
        ModelError as Canary.check."""
        given = [LearntRollout(rollout, place, 0.0, 1.0, 1.0) for place, rollout in enumerate(rollouts)]
        documents = [document for each in given for document in group_documents("canary", [each], True, 2**31)]
        if not documents:
            return math.nan
        reading = self._world.ask("canary", rollout_batches(documents, 2**31, {})[0])
        return self.compared.check(reading, self._engine.exact and self._precision == "float32", number)
