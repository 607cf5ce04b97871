"""Losses of reinforcement fine-tuning, corrections of sampled tokens, and the distance from the start, as pure functions.

    weights = CORRECTIONS["icepop"](tokens)                                    # no gradient
    values = POLICY_LOSSES["grpo"](replace(tokens, weights=weights), clip_low=0.2)     # a value for each token
    aggregated = (values * weights * share).sum() / count                      # model_ops.reinforcement.policy_loss

The ratio of a token is its probability by the model in training over that of the sampler, which is what the engine said when it
sampled the token: one ratio covers both the updates since and the difference of two implementations. Log-ratios are cut at
MOST_LOG before exp. A loss of whole rollouts (OF_ROLLOUTS) gives each token the value of its rollout, for the aggregation by
rollout. A correction enters its sum of log-ratios, so that no outlier is in the ratio of a rollout: masked tokens have no part
in sum and length, as in verl, and a token's ratio is cut before the product, as that of V-trace (arXiv 1802.01561).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

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
    "grpo": grpo,
    "dr_grpo": grpo,
    "rloo": rloo,
    "gspo": gspo,
    "cispo": cispo,
    "dppo": dppo,
    "kimi_k2": kimi_k2,
}
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
