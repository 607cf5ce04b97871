"""Loss of preference training: a weighted sum of the losses of pairs and answers below.

Each loss is a term with its own mean over a step, weighted by rows: over pairs for losses of pairs, over answers for kto and
apo_zero_unpaired, over rows for bco (a pair counts both answers), over tokens of desirable answers for sft. A row's weight is
multiplied by its confidence; robust_dpo takes 1 - confidence as the probability that the label is wrong instead.

Log-probabilities of labels come from chunks of the head (model_ops.losses); their sums are float64, because a margin is a small
difference of large sums. Logged, as means over the step:

reward_chosen, reward_rejected   beta r, or without a reference beta times the log-probability by token
margin, accuracy                 of pairs: difference of rewards, and the share above 0 (half of those that are 0)
logp_chosen, logp_rejected       log-probability by token; both may fall while their difference grows
kl                               e^x - 1 - x by token, x = log reference - log model (k3, Schulman 2020): the divergence from
                                 the reference if the model had said these answers, so of logged ones only a sign of movement
clipped                          share of tokens whose x was cut at MOST_LOG
z0, shift                        of kto and bco"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from model_ops.losses import label_log_probs
from model_ops.preferences.preference_batches import NO_ANSWER, PreferenceBatch
from model_ops.tensors import LossOutput, Mean

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
    the model is from the reference, without gradient (model_ops.preferences.held_out_preferences). Ethayarajh et al., arXiv
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


WITHOUT_REFERENCE = frozenset({"simpo", "orpo", "sft"})


class PreferenceLoss:
    """The loss for the trainer. weights: by name of the loss. given: keywords of the losses that are not left to their
    defaults, such as beta."""

    def __init__(self, weights: Mapping[str, float], given: Mapping[str, float]):
        self.weights = weights
        functions = {name: PAIR_LOSSES.get(name) or ANSWER_LOSSES.get(name) or sft for name in weights}
        self._given = {
            name: {key: value for key, value in given.items() if key in signature(function).parameters}
            for name, function in functions.items()
        }
        betas = {
            name: given.get("beta", signature(function).parameters["beta"].default)
            for name, function in functions.items()
            if name != "sft"
        }
        self.beta: float = next(iter(betas.values()), 1.0)
        """Of the rewards that are logged: that of the first loss."""
        self._of_shift = betas.get("bco", self.beta) / self.beta
        self.shift, self._steps = 0.0, 0

    @property
    def needs_reference(self) -> bool:
        return not self.weights.keys() <= WITHOUT_REFERENCE

    def counts(self, batch: PreferenceBatch) -> Mapping[str, Tensor | float]:
        """What each term is a mean over."""
        weights = batch.answer_weights * batch.share
        sure = weights * batch.confidence
        chosen = batch.desirable & (batch.others != NO_ANSWER)
        counted = {
            "robust_dpo": weights[chosen].sum(),
            "bco": sure[chosen | (batch.others == NO_ANSWER)].sum(),
            "sft": (sure * batch.answer_tokens)[batch.desirable].sum(),
            **dict.fromkeys(("kto", "apo_zero_unpaired"), sure.sum()),
        }
        return {name: counted.get(name, sure[chosen].sum()) for name in self.weights}

    def __call__(self, model: nn.Module, batch: PreferenceBatch) -> LossOutput:
        log_probs, labelled = label_log_probs(model, batch)
        answers = self._answers(batch, log_probs, labelled)
        counts, terms = self.counts(batch), {}
        for name, weight in self.weights.items():
            total = weight * self._total(name, answers, batch)
            if batch.share < 1:  # each process has the whole loss, and the gradient of its own tokens
                total = total - (1 - batch.share) * total.detach()
            terms[name] = Mean(total + 0.0 * log_probs.sum(), counts[name])
        with torch.no_grad():
            return LossOutput(terms, self._metrics(answers, batch, log_probs.detach(), labelled))

    def after_step(self, numbers: Mapping[str, float]) -> None:
        """Adds a step's rewards to the mean that bco shifts by. It lags one step; in the first one all rewards are 0."""
        mean = self._of_shift * (numbers["reward_chosen"] + numbers["reward_rejected"]) / 2
        if "bco" in self.weights and mean == mean:
            self._steps += 1
            self.shift += (mean - self.shift) / self._steps

    def state(self) -> dict[str, Any]:
        return {"shift": self.shift, "steps": self._steps}

    def resume(self, state: Mapping[str, Any]) -> None:
        self.shift, self._steps = state["shift"], state["steps"]

    def _answers(self, batch: PreferenceBatch, log_probs: Tensor, labelled: Tensor) -> AnswerLogProbs:
        """Sums over each answer's labels. labelled: the positions that have one."""
        owners = batch.answers[labelled]

        def summed(values: Float64[Tensor, " labels"]) -> Float64[Tensor, " answers"]:
            sums = values.new_zeros(len(batch.answer_tokens))
            for side in (0, 1):
                held = owners[:, side] != NO_ANSWER
                sums = sums.index_add(0, owners[held, side], values[held])
            if batch.context is None:
                return sums
            everywhere = sums.detach().clone()
            dist.all_reduce(everywhere, group=batch.context.group)
            return sums + (everywhere - sums.detach())

        return AnswerLogProbs(summed(log_probs.double()), summed(batch.reference[labelled].double()), batch.answer_tokens)

    def _total(self, name: str, answers: AnswerLogProbs, batch: PreferenceBatch) -> Float64[Tensor, ""]:
        """The sum over rows of their weights times the loss."""
        given, weights = dict(self._given[name]), batch.answer_weights * batch.confidence
        if name in PAIR_LOSSES:
            chosen = (batch.desirable & (batch.others != NO_ANSWER)).nonzero()[:, 0]
            if name == "robust_dpo":
                given.setdefault("noise", 1 - batch.confidence[chosen])
                weights = batch.answer_weights
            values = PAIR_LOSSES[name](answers.of(chosen), answers.of(batch.others[chosen]), **given)
            return (values * weights[chosen]).sum()
        if name == "sft":
            return (sft(answers) * weights)[batch.desirable].sum()
        given |= {"kto": {"z0": batch.z0}, "bco": {"shift": self.shift}}.get(name, {})
        return (ANSWER_LOSSES[name](answers, batch.desirable, **given) * weights).sum()

    def _metrics(self, answers: AnswerLogProbs, batch: PreferenceBatch, log_probs: Tensor, labelled: Tensor) -> dict[str, Mean]:
        """See the head of this file."""
        seen = batch.answer_weights > 0
        rewards = self.beta * (answers.ratio if self.needs_reference else answers.mean)
        means = {}
        for side, of_side in (("chosen", batch.desirable & seen), ("rejected", ~batch.desirable & seen)):
            means[f"reward_{side}"] = Mean(rewards[of_side].sum(), of_side.sum())
            means[f"logp_{side}"] = Mean(answers.policy[of_side].sum(), answers.tokens[of_side].sum())
        chosen = (batch.desirable & seen & (batch.others != NO_ANSWER)).nonzero()[:, 0]
        margins = rewards[chosen] - rewards[batch.others[chosen]]
        means["margin"] = Mean(margins.sum(), len(chosen))
        means["accuracy"] = Mean((margins.sign() + 1).sum() / 2, len(chosen))
        means = {name: Mean(mean.sum * batch.share, mean.count * batch.share) for name, mean in means.items()}
        if self.needs_reference:
            moved = batch.reference[labelled] - log_probs
            cut = moved.clamp(-MOST_LOG, MOST_LOG)
            means["kl"] = Mean((torch.expm1(cut) - cut).sum(), len(labelled))
            means["clipped"] = Mean((moved != cut).sum(), len(labelled))
        if "kto" in self.weights:
            means["z0"] = Mean(batch.z0, 1)
        if "bco" in self.weights:
            means["shift"] = Mean(self.shift, 1)
        return means
