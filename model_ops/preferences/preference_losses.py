"""Preference losses: pure functions of the log-probabilities of whole answers, with a value for each pair or answer.

    dpo(chosen, rejected, beta=0.1)                      # [pairs], nats
    kto(answers, desirable, z0, beta=0.1)                # [answers]; each answer has a verdict of its own

An answer's log-probability is the sum over its tokens, the end of its turn and the beginning that it shares with the other
answer included. r is its ratio: log-probability minus that of the reference, the model before this training. Below w is the
chosen answer, l the rejected one, D = r_w - r_l, sigma the logistic function. Values are in the forms that stay finite:
log sigma by logsigmoid, 1 - sigma(x) as sigma(-x), log(1 - e^p) by log1mexp.

Defaults are those of the source, or of TRL 1.16 where the source names none. Where TRL differs from the source: its bco_pair
has no shift; its ORPO adds the likelihood of the prompt, a mean over a micro-batch, so that a pair's value depends on its
neighbours; its z0 is a mean over one micro-batch. Here each pair has its own mean, and z0 is the mean over a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

MOST_NOISE = 0.45
"""Largest share of wrong labels that robust_dpo corrects; at 0.5 a label says nothing and the correction is infinite."""
MOST_LOG = 20.0
"""Log-ratios are cut at this size before exp."""


@dataclass(frozen=True)
class AnswerLogProbs:
    """Log-probabilities of some answers in nats, float64. Only `policy` has a gradient."""

    policy: Float[Tensor, " answers"]
    reference: Float[Tensor, " answers"]
    tokens: Int[Tensor, " answers"]

    @property
    def ratio(self) -> Float[Tensor, " answers"]:
        return self.policy - self.reference

    @property
    def mean(self) -> Float[Tensor, " answers"]:
        """Log-probability of a token."""
        return self.policy / self.tokens

    def of(self, index: Int[Tensor, " some"]) -> AnswerLogProbs:
        """Some of the answers."""
        return AnswerLogProbs(*(getattr(self, each.name)[index] for each in fields(self)))


def dpo(chosen: AnswerLogProbs, rejected: AnswerLogProbs, beta: float = 0.1) -> Float[Tensor, " pairs"]:
    """-log sigma(beta D). Rafailov et al., arXiv 2305.18290, equation 7."""
    return -logsigmoid(beta * (chosen.ratio - rejected.ratio))


def ipo(chosen: AnswerLogProbs, rejected: AnswerLogProbs, beta: float = 0.1) -> Float[Tensor, " pairs"]:
    """(D - 1 / (2 beta))^2. Azar et al., arXiv 2310.12036, equation 17; ratios are by token, as the authors told TRL."""
    return (chosen.ratio / chosen.tokens - rejected.ratio / rejected.tokens - 1 / (2 * beta)).square()


def robust_dpo(
    chosen: AnswerLogProbs, rejected: AnswerLogProbs, noise: Float[Tensor, " pairs"] | float = 0.1, beta: float = 0.1
) -> Float[Tensor, " pairs"]:
    """(-(1 - e) log sigma(beta D) + e log sigma(-beta D)) / (1 - 2 e), e the probability that the label is wrong: the loss of
    the true labels in expectation. Chowdhury et al., arXiv 2403.00409."""
    margin = beta * (chosen.ratio - rejected.ratio)
    wrong = torch.as_tensor(noise, dtype=margin.dtype, device=margin.device).clamp(0, MOST_NOISE)
    return (wrong * logsigmoid(-margin) - (1 - wrong) * logsigmoid(margin)) / (1 - 2 * wrong)


def apo_zero(chosen: AnswerLogProbs, rejected: AnswerLogProbs, beta: float = 0.1) -> Float[Tensor, " pairs"]:
    """sigma(-beta r_w) + sigma(beta r_l): raises the chosen answer and lowers the rejected one, each by itself.
    D'Oosterlinck et al., arXiv 2408.06266, equation 7."""
    return torch.sigmoid(-beta * chosen.ratio) + torch.sigmoid(beta * rejected.ratio)


def simpo(
    chosen: AnswerLogProbs, rejected: AnswerLogProbs, beta: float = 2.5, margin: float = 1.375
) -> Float[Tensor, " pairs"]:
    """-log sigma(beta (mean_w - mean_l) - margin) with log-probabilities by token; no reference. Meng et al., arXiv 2405.14734,
    with margin / beta 0.55."""
    return -logsigmoid(beta * (chosen.mean - rejected.mean) - margin)


def orpo(
    chosen: AnswerLogProbs, rejected: AnswerLogProbs, beta: float = 0.1, nll_weight: float = 1.0
) -> Float[Tensor, " pairs"]:
    """nll_weight times the chosen answer's negative log-likelihood by token - beta log sigma(log odds_w - log odds_l), with
    odds p / (1 - p) of the mean probability of a token; no reference. Hong et al., arXiv 2403.07691, equations 4 and 7."""
    odds = [mean - log1mexp(mean) for mean in (chosen.mean, rejected.mean)]
    return -nll_weight * chosen.mean - beta * logsigmoid(odds[0] - odds[1])


def kto(
    answers: AnswerLogProbs,
    desirable: Bool[Tensor, " answers"],
    z0: Float[Tensor, ""] | float,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Float[Tensor, " answers"]:
    """sigma(-beta (r - z0)) of a desirable answer, sigma(beta (r - z0)) of another one, times its class's weight. z0: how far
    the model is from the reference, without gradient (model_ops.preferences.mismatched_answers). Ethayarajh et al., arXiv
    2402.01306, equation 7; by equation 8 desirable_weight n_D / (undesirable_weight n_U) is best in [1, 4/3]."""
    moved = beta * (answers.ratio - z0)
    return torch.where(desirable, desirable_weight * torch.sigmoid(-moved), undesirable_weight * torch.sigmoid(moved))


def bco(
    answers: AnswerLogProbs, desirable: Bool[Tensor, " answers"], shift: float = 0.0, beta: float = 0.1
) -> Float[Tensor, " answers"]:
    """-log sigma(beta r - shift) of a desirable answer, -log sigma(shift - beta r) of another one. shift: mean of beta r over
    both classes so far. Jung et al., arXiv 2404.04656; without its weights by the density of prompts."""
    moved = beta * answers.ratio - shift
    return -logsigmoid(torch.where(desirable, moved, -moved))


def apo_zero_unpaired(
    answers: AnswerLogProbs, desirable: Bool[Tensor, " answers"], beta: float = 0.1
) -> Float[Tensor, " answers"]:
    """APO-zero by answer: sigma(-beta r) of a desirable one, sigma(beta r) of another one. It needs no z0, so it also works for
    a step with few answers. D'Oosterlinck et al., arXiv 2408.06266, equation 7."""
    return kto(answers, desirable, 0.0, beta)


def sft(answers: AnswerLogProbs) -> Float[Tensor, " answers"]:
    """Negative log-likelihood of an answer, to be divided by tokens: fine-tuning on the chosen answers."""
    return -answers.policy


def log1mexp(p: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """log(1 - e^p) for p < 0. Maechler, "Accurately computing log(1 - exp(-|a|))", 2012."""
    p = p.clamp(max=-1e-12)  # a certain answer: its odds stay finite
    near = p > -math.log(2)
    return torch.where(near, (-torch.expm1(p.masked_fill(~near, -1.0))).log(), torch.log1p(-p.masked_fill(near, -1.0).exp()))


PAIR_LOSSES: dict[str, Callable[..., Tensor]] = {each.__name__: each for each in (dpo, ipo, robust_dpo, apo_zero, simpo, orpo)}
ANSWER_LOSSES: dict[str, Callable[..., Tensor]] = {each.__name__: each for each in (kto, bco, apo_zero_unpaired)}
