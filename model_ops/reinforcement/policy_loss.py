"""Loss of reinforcement fine-tuning over a batch of rollouts (model_ops.reinforcement.policy_losses has the formulas).

The sum over tokens of scale times value, over the sum of their shares. A correction weighs the value of each token, or in a
loss of whole rollouts its ratio; a token that it masks counts in neither sum, and the others of its rollout share the rollout's
weight. What `nll` of the batch asks for, -log p of
answers that passed, is added to the sum. Log-probabilities are float32, of logits divided by the temperature. Logged, as means
over learnt tokens:

entropy          minus the log-probability: an estimate without bias of the policy's entropy, in nats
gap              |log-ratio| of model and sampler
gap_k3           e^x - 1 - x of the log-ratio x: an estimate of the divergence KL(sampler || model)
effective        effective sample size of the ratios, as a share: (sum r)^2 / (n sum r^2)
outside          share of tokens whose ratio is outside ICEPOP_BAND, and would be masked by icepop
corrected        share of tokens whose weight a correction changed
kl               k3 to the model before this training, where `kl` asks for it
unscored         share of tokens without a log-probability of the sampler

With answers of older weights, gap_age_1 is `gap` of the tokens whose weights were one step old, and so on for gap_k3, effective
and outside, from age 0 to the oldest.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from model_ops.losses import label_log_probs
from model_ops.reinforcement.policy_losses import (
    CORRECTIONS,
    ICEPOP_BAND,
    OF_ROLLOUTS,
    POLICY_LOSSES,
    SampledTokens,
    k3,
    kl_penalty,
)
from model_ops.reinforcement.rollout_batches import RolloutBatch
from model_ops.tensors import IGNORED, LossOutput, Mean

LEAST_COUNT = 1e-6
"""Count of a micro-batch without anything to learn, so that a step of such ones divides 0 by something."""


class PolicyLoss:
    """given: keywords of the loss that are not left to its defaults. correction: of CORRECTIONS, or none. kl: weight of the
    distance from the model before this training. oldest: age of the oldest weights that sample, in steps."""

    def __init__(self, name: str, given: Mapping[str, float], correction: str, kl: float, temperature: float, oldest: int = 0):
        self._oldest = oldest
        self.name, self.kl, self.temperature = name, kl, temperature
        self._values, self._given = POLICY_LOSSES[name], dict(given)
        self._correction = CORRECTIONS.get(correction)
        self._gaps: list[tuple[Tensor, Tensor]] = []

    def __call__(self, model: nn.Module, batch: RolloutBatch) -> LossOutput:
        # before the forward: a device is asked for the number of rollouts while it has nothing to do
        numbers, owners = batch.owners[batch.labels != IGNORED].unique(return_inverse=True)
        log_probs, labelled = label_log_probs(model, batch, temperature=self.temperature)
        tokens = SampledTokens(log_probs, batch.sampler[labelled], batch.advantages[labelled], owners, len(numbers))
        weights = torch.ones_like(log_probs) if self._correction is None else self._correction(tokens)
        corrected, reference = replace(tokens, weights=weights), batch.reference[labelled]
        values, regained = self._values(corrected, **self._given), torch.ones_like(log_probs)
        if self.name in OF_ROLLOUTS:  # those have the weights in their ratios
            regained = (tokens.lengths / corrected.lengths)[owners]
        else:
            values = weights * values
        if self.kl:
            values = values + self.kl * weights * kl_penalty(tokens, reference)
        learnt = batch.shares[labelled] > 0
        shares = batch.shares[labelled] * (weights > 0) * regained
        # a mask: 0 times infinity is no number; no @, which autocast computes in bfloat16
        masked = torch.where(learnt & (weights > 0), values, 0.0)
        total = (masked * batch.scales[labelled] * regained - log_probs * batch.nll[labelled]).sum()
        with torch.no_grad():
            metrics = self._metrics(tokens, reference, weights, learnt)
            for age in range(self._oldest + 1) if self._oldest else ():
                of_age = learnt & (batch.ages[labelled] == age)
                metrics |= {f"{name}_age_{age}": mean for name, mean in gap_metrics(tokens, of_age).items()}
            self._keep_gaps(tokens, numbers)
        return LossOutput({"loss": Mean(total, shares.sum().clamp(min=LEAST_COUNT))}, metrics | self._measured(batch))

    def _metrics(self, tokens: SampledTokens, reference: Tensor, weights: Tensor, learnt: Tensor) -> dict[str, Mean]:
        """See the head of this file."""
        of_tokens = {
            "unscored": tokens.sampler.isnan(),
            **({"corrected": weights != 1} if self._correction else {}),
            **({"kl": k3(tokens.policy, reference)} if self.kl else {}),
        }
        count, gaps = learnt.sum(), gap_metrics(tokens, learnt)
        means = {name: Mean(torch.where(learnt, each, 0.0).sum(), count) for name, each in of_tokens.items()}
        effective = {"effective": gaps.pop("effective")}
        return {"entropy": Mean(torch.where(learnt, -tokens.policy, 0.0).sum(), count), **gaps, **means, **effective}

    def _keep_gaps(self, tokens: SampledTokens, numbers: Tensor) -> None:
        """On the device: they are read once a step, by `taken_gaps`."""
        self._gaps.append((numbers, tokens.summed(tokens.log_ratio.abs()) / tokens.lengths))

    def taken_gaps(self) -> dict[int, float]:
        """Number of a rollout -> its mean |log-ratio|, since they were last taken."""
        gaps, self._gaps = self._gaps, []
        return {number: gap for of_batch in gaps for number, gap in zip(*(each.tolist() for each in of_batch), strict=True)}

    @staticmethod
    def _measured(batch: RolloutBatch) -> dict[str, Mean]:
        return {name: Mean(*mean) for name, mean in batch.numbers.items()}


def gap_metrics(tokens: SampledTokens, chosen: Tensor) -> dict[str, Mean]:
    """How far the model is from the sampler over the chosen tokens: see the head of this file. chosen: bool, by token."""
    count, ratio = chosen.sum(), tokens.log_ratio.exp()
    low, high = ICEPOP_BAND
    of_tokens = {
        "gap": tokens.log_ratio.abs(),
        "gap_k3": torch.expm1(tokens.log_ratio) - tokens.log_ratio,
        "outside": (ratio < low) | (ratio > high),
    }
    means = {name: Mean(torch.where(chosen, each, 0.0).sum(), count) for name, each in of_tokens.items()}
    mine = torch.where(chosen, ratio, 0.0)  # ratio[chosen] would wait for the device
    means["effective"] = Mean(mine.sum().square() / mine.square().sum().clamp(min=LEAST_COUNT), count)
    return means
