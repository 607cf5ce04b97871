"""Loss of reinforcement fine-tuning over a batch of rollouts; its kinds and their formulas are functions below.

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
and outside, from age 0 to the oldest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from model_ops.losses import label_log_probs
from model_ops.reinforcement.rollout_batches import RolloutBatch
from model_ops.tensors import IGNORED, LossOutput, Mean

MOST_LOG = 20.0
"""Largest log-ratio in nats, either way: exp(20) is 5e8."""
ICEPOP_BAND = (0.5, 5.0)
TIS_CAP = 2.0

Values = Float[Tensor, " tokens"]


@dataclass(frozen=True)
class SampledTokens:
    """Tokens of rollouts."""

    policy: Values
    """Log-probability by the model in training, differentiable."""
    sampler: Values
    """Log-probability by the sampler. NaN, where a server gave none, counts as the policy's own."""
    advantages: Values
    owners: Int[Tensor, " tokens"]
    """Number of the token's rollout, from 0."""
    rollouts: int
    weights: Values | None = None
    """Of a correction; losses of whole rollouts read them."""

    @property
    def log_ratio(self) -> Values:
        known = torch.where(self.sampler.isnan(), self.policy.detach(), self.sampler)
        return (self.policy - known).clamp(-MOST_LOG, MOST_LOG)

    @property
    def lengths(self) -> Float[Tensor, " rollouts"]:
        """Tokens of each rollout that are not masked, at least 1."""
        ones = torch.ones_like(self.advantages)
        return self.summed(ones if self.weights is None else ones * (self.weights > 0)).clamp(min=1)

    @property
    def corrected_sum(self) -> Float[Tensor, " rollouts"]:
        """Sum of each rollout's log-ratios, without masked tokens, each with its weight."""
        logs = self.log_ratio
        return self.summed(logs if self.weights is None else torch.where(self.weights > 0, logs + self.weights.log(), 0.0))

    def summed(self, values: Values) -> Float[Tensor, " rollouts"]:
        """Sum of each rollout."""
        return values.new_zeros(self.rollouts).index_add(0, self.owners, values)


def grpo(tokens: SampledTokens, clip_low: float = 0.2, clip_high: float = 0.28) -> Values:
    """-min(ratio A, clip(ratio, 1 - low, 1 + high) A). Shao et al., arXiv 2402.03300, equation 3, without its KL; the wider
    upper clip of DAPO, arXiv 2503.14476, leaves rare tokens room to grow. Dr.GRPO, arXiv 2503.20783, has the same
    value, with another advantage and aggregation."""
    return _clipped(tokens.log_ratio.exp(), tokens.advantages, clip_low, clip_high)


def rloo(tokens: SampledTokens, clip_low: float = 0.2, clip_high: float = 0.2) -> Values:
    """The clipped product of a rollout's ratios times its advantage: REINFORCE of whole answers, Ahmadian et al., arXiv
    2402.14740, with the clip of TRL 1.16 for further steps on the same rollouts."""
    ratios = tokens.corrected_sum.clamp(-MOST_LOG, MOST_LOG).exp()
    return _clipped(ratios[tokens.owners], tokens.advantages, clip_low, clip_high)


def gspo(tokens: SampledTokens, clip_low: float = 3e-4, clip_high: float = 4e-4) -> Values:
    """The clipped geometric mean of a rollout's ratios times its advantage. Zheng et al., arXiv 2507.18071;
    the clips of its experiments. Only further steps on the same rollouts reach them."""
    ratios = (tokens.corrected_sum / tokens.lengths).exp()
    return _clipped(ratios[tokens.owners], tokens.advantages, clip_low, clip_high)


def cispo(tokens: SampledTokens, cap: float = 5.0) -> Values:
    """-sg(min(ratio, cap)) A log p: every token keeps a gradient, with a bounded weight. MiniMax-M1, arXiv 2506.13585;
    the cap of ScaleRL, arXiv 2510.13786."""
    return -tokens.log_ratio.detach().exp().clamp(max=cap) * tokens.advantages * tokens.policy


def dppo(tokens: SampledTokens, clip_low: float = 0.2, clip_high: float = 0.2, sampler_kl: float = 1e-3) -> Values:
    """-ratio A, 0 for tokens whose probability has moved past a bound in the direction of the advantage (DPPO-Binary-TV, arXiv
    2602.04879), plus `sampler_kl` times the squared log-ratio (Kimi K2.5, arXiv 2602.02276): the default loss of prime-rl. The
    bound is on the difference of probabilities, so rare tokens are not held back by large ratios."""
    log_ratio = tokens.log_ratio
    moved = (tokens.policy.exp() - (tokens.policy - log_ratio).exp()).detach()
    past = torch.where(tokens.advantages > 0, moved > clip_high, moved < -clip_low)
    return sampler_kl * log_ratio.square() - torch.where(past, 0.0, log_ratio.exp() * tokens.advantages)


def kimi_k2(tokens: SampledTokens, tau: float = 0.1) -> Values:
    """(A - tau log ratio of the rollout)^2 / (2 tau), A centred by group. Kimi K2, arXiv 2507.20534 (Kimi k1.5,
    arXiv 2501.12599), divided by 2 tau, so that its first gradient is that of REINFORCE."""
    return (tokens.advantages - tau * tokens.corrected_sum[tokens.owners]).square() / (2 * tau)


def _clipped(ratios: Values, advantages: Values, low: float, high: float) -> Values:
    return -torch.minimum(ratios * advantages, ratios.clamp(1 - low, 1 + high) * advantages)


POLICY_LOSSES: dict[str, Callable[..., Values]] = {
    "grpo": grpo, "dr_grpo": grpo, "rloo": rloo, "gspo": gspo, "cispo": cispo, "dppo": dppo, "kimi_k2": kimi_k2,
}  # fmt: skip
OF_ROLLOUTS = frozenset({"rloo", "gspo", "kimi_k2"})


@torch.no_grad()
def truncated_weights(tokens: SampledTokens) -> Values:
    """What cuts a token's ratio at TIS_CAP: min(ratio, cap) / ratio. Truncated importance sampling, Yao et al. 2025
    (fengyao.notion.site/off-policy-rl), for losses whose ratio has no upper bound. A ratio below 1 stays."""
    return (TIS_CAP / tokens.log_ratio.exp()).clamp(max=1.0)


@torch.no_grad()
def icepop_weights(tokens: SampledTokens) -> Values:
    """1 within ICEPOP_BAND, 0 for tokens outside. IcePop, Ring-1T, arXiv 2510.18855."""
    low, high = ICEPOP_BAND
    ratio = tokens.log_ratio.exp()
    return ((ratio >= low) & (ratio <= high)).to(ratio.dtype)


CORRECTIONS: dict[str, Callable[[SampledTokens], Values]] = {"tis": truncated_weights, "icepop": icepop_weights}


def kl_penalty(tokens: SampledTokens, reference: Values) -> Values:
    """ratio (log p - log p of the start)^2 / 2, without gradient through the ratio. As a loss its gradient is that of the
    reverse KL divergence (k2 as loss, arXiv 2510.01555), and the ratio makes it that of the present model (DeepSeek-V3.2, arXiv
    2512.02556). The value itself is no divergence: `k3` is reported."""
    moved = (tokens.policy - reference).clamp(-MOST_LOG, MOST_LOG)
    return tokens.log_ratio.detach().exp() * moved.square() / 2


def k3(policy: Values, reference: Values) -> Values:
    """e^x - 1 - x, x = log reference - log p: an estimate without bias of KL(policy || reference) on the policy's own tokens.
    Schulman 2020 (joschu.net/blog/kl-approx.html)."""
    moved = (reference - policy).clamp(-MOST_LOG, MOST_LOG)
    return torch.expm1(moved) - moved


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
        return LossOutput(
            {"loss": Mean(total, shares.sum().clamp(min=LEAST_COUNT))},
            metrics | {name: Mean(*mean) for name, mean in batch.numbers.items()},
        )

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
