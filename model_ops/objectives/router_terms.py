"""Router terms of a mixture of experts, beside any loss with one term.

    loss = RoutedLoss(next_token_loss, model, balance=1e-3, z=1e-3)        # a model_ops.loss.LossOfTerms

- router_balance: experts x sum over experts of (share of routed tokens) x (mean probability), 1 if all experts are used alike
  (Switch Transformers, arXiv 2101.03961, equation 4).
- router_z: mean squared log-normaliser of the router's logits (ST-MoE, arXiv 2202.08906, equation 5).

Both are means over layers and tokens of a micro-batch; the experts of a token are those with its highest logits (routers that
add a bias or choose among groups may take others). Padding counts as tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from model_ops.batch import IGNORED, Batch
from model_ops.errors import ModelError
from model_ops.families.routers import ROUTERS
from model_ops.loss import Loss, LossOutput, Mean


class RoutedLoss:
    """A loss with router terms. balance, z: their weights; a term of weight 0 is left out.

    Raises ModelError for a model without routers.
    """

    def __init__(self, inner: Loss, model: nn.Module, balance: float, z: float):
        self.inner, self.balance, self.z = inner, balance, z
        self.top_k = getattr(model.config, "num_experts_per_tok", None)
        if not self.top_k or not routers(model):
            raise ModelError(f"router_balance and router_z need a mixture of experts, and a {model.config.model_type} of this "
                             "config has no router: leave both out")

    def __call__(self, model: nn.Module, batch: Batch) -> LossOutput:
        found: list[Tensor] = []

        def note(router: nn.Module, given: tuple, output: object) -> None:
            with torch.autocast(given[0].device.type, enabled=False):
                logits = given[0].flatten(0, -2).float() @ router.weight.float().T
                if getattr(router, "bias", None) is not None:
                    logits = logits + router.bias.float()
            found.append(logits)

        with ExitStack() as hooks:
            for router in routers(model):
                hooks.callback(router.register_forward_hook(note).remove)
            output = self.inner(model, batch)
        terms = dict(output.terms)
        for name, weight, formula in self._terms():
            mean = torch.stack([formula(logits, self.top_k) for logits in found]).mean()
            terms[name] = Mean(weight * mean * batch.tokens, batch.tokens)
        return LossOutput(terms, output.metrics)

    def counts(self, batch: Batch) -> Mapping[str, Tensor | float]:
        """The weight of the labels, and the tokens for each router term."""
        return {"loss": batch.weights[batch.labels != IGNORED].sum(), **{name: batch.tokens for name, _, _ in self._terms()}}

    def _terms(self):
        terms = (("router_balance", self.balance, balance), ("router_z", self.z, squared_normaliser))
        return [term for term in terms if term[1]]


def routers(model: nn.Module) -> list[nn.Module]:
    """The routers of a model's layers: modules of a router's name with one row of weights for each expert."""
    return [module for name, module in model.named_modules() if name.rpartition(".")[2] in ROUTERS
            and getattr(module, "weight", None) is not None and module.weight.ndim == 2 and module.weight.shape[0] > 1]


def balance(logits: Float[Tensor, "tokens experts"], top_k: int) -> Float[Tensor, ""]:
    """experts x sum of (share of routed tokens) x (mean probability)."""
    experts = logits.shape[1]
    chosen = F.one_hot(logits.topk(top_k, dim=-1).indices, experts).float().mean((0, 1))
    return experts * (chosen * logits.softmax(-1).mean(0)).sum()


def squared_normaliser(logits: Float[Tensor, "tokens experts"], top_k: int) -> Float[Tensor, ""]:
    """Mean squared log-sum-exp of the logits."""
    return logits.logsumexp(-1).square().mean()
