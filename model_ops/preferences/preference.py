"""Loss of preference training: a weighted sum of preference losses (model_ops.preferences.preference_losses).

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
z0, shift                        of kto and bco
"""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float64
from torch import Tensor, nn

from model_ops.losses import label_log_probs
from model_ops.preferences.preference_batches import NO_ANSWER, PreferenceBatch
from model_ops.preferences.preference_losses import ANSWER_LOSSES, MOST_LOG, PAIR_LOSSES, AnswerLogProbs, sft
from model_ops.tensors import LossOutput, Mean

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
