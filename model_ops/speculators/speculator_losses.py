"""Losses of a drafter against its target, per position, in float32: KL, LK-lambda, LK-alpha and TV.

    losses, alpha = speculator_loss("lk_lambda", draft_logits, target)
    total, alpha = head_loss("lk_lambda", hidden, lm_head.weight, target, rows)      # logits never held at once

target: the target's probabilities of the draft vocabulary's tokens, from its softmax over the FULL vocabulary (they add
up to at most 1). q = softmax(draft_logits). With it alpha = sum min(p, q) is the exact probability that a draft is
accepted, and TV = 1 - alpha. KL is taken against p renormalised over the draft vocabulary.

LK losses: Samarin et al. 2026, arXiv 2602.23881. LK-alpha = -log alpha. LK-lambda = lambda KL + (1 - lambda) TV with
lambda = exp(-eta alpha), alpha not differentiated, per position; eta = 3 for EAGLE-3.
Gradients with respect to the logits z, with A = {x: q(x) < p(x)} and Q_A = sum of q over A:
    dKL/dz = q - p;  dTV/dz = -q (1[A] - Q_A);  d(-log alpha)/dz = dTV/dz / alpha
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

LossKind = Literal["kl", "lk_lambda", "lk_alpha", "tv"]

ETA = 3.0
ALPHA_FLOOR = 1e-5
"""Below it -log alpha goes on as its tangent, so that its gradient stays bounded."""

LOGITS_AT_ONCE = 1 << 20
"""Logits of one piece of `head_loss` (4 MiB in float32: they stay in cache)."""


def acceptance(draft_logits: Float[Tensor, "*positions draft_vocab"],
               target: Float[Tensor, "*positions draft_vocab"]) -> Float32[Tensor, "*positions"]:
    """alpha = sum min(p, q): the probability that standard rejection sampling accepts a draft from q."""
    return torch.minimum(draft_logits.float().softmax(dim=-1), target.float()).sum(dim=-1)


def kl_loss(draft_logits: Float[Tensor, "*positions draft_vocab"],
            target: Float[Tensor, "*positions draft_vocab"]) -> Float32[Tensor, "*positions"]:
    """KL(p || q) with p renormalised over the draft vocabulary."""
    p = target.float() / target.float().sum(dim=-1, keepdim=True).clamp(min=1e-30)
    return (torch.xlogy(p, p) - p * draft_logits.float().log_softmax(dim=-1)).sum(dim=-1)


def tv_loss(draft_logits: Float[Tensor, "*positions draft_vocab"],
            target: Float[Tensor, "*positions draft_vocab"]) -> Float32[Tensor, "*positions"]:
    """Total variation distance over the full vocabulary, 1 - alpha."""
    return 1 - acceptance(draft_logits, target)


def lk_alpha_loss(draft_logits: Float[Tensor, "*positions draft_vocab"],
                  target: Float[Tensor, "*positions draft_vocab"]) -> Float32[Tensor, "*positions"]:
    """-log alpha."""
    return _negative_log(acceptance(draft_logits, target))


def lk_lambda_loss(draft_logits: Float[Tensor, "*positions draft_vocab"],
                   target: Float[Tensor, "*positions draft_vocab"], eta: float = ETA) -> Float32[Tensor, "*positions"]:
    """lambda KL + (1 - lambda) TV, lambda = exp(-eta alpha): KL while p and q are far apart, TV when they are close."""
    alpha = acceptance(draft_logits, target)
    weight = torch.exp(-eta * alpha.detach())
    return weight * kl_loss(draft_logits, target) + (1 - weight) * (1 - alpha)


LOSSES = {"kl": kl_loss, "lk_lambda": lk_lambda_loss, "lk_alpha": lk_alpha_loss, "tv": tv_loss}


def loss_and_gradient(kind: LossKind, draft_logits: Float32[Tensor, "positions draft_vocab"],
                      target: Float32[Tensor, "positions draft_vocab"],
                      ) -> tuple[Float32[Tensor, " positions"], Float32[Tensor, " positions"], Tensor]:
    """(loss, alpha, d loss / d draft_logits) by the closed forms above; no graph is built."""
    log_q = draft_logits.log_softmax(dim=-1)
    q = log_q.exp()
    alpha = torch.minimum(q, target).sum(dim=-1)
    if kind != "kl":
        in_a = q < target
        inside = torch.where(in_a, q, 0)
        tv_gradient = q * inside.sum(dim=-1, keepdim=True) - inside
        if kind == "tv":
            return 1 - alpha, alpha, tv_gradient
        if kind == "lk_alpha":
            return _negative_log(alpha), alpha, tv_gradient / alpha.clamp(min=ALPHA_FLOOR)[:, None]
    p = target / target.sum(dim=-1, keepdim=True).clamp(min=1e-30)
    kl = torch.xlogy(p, p).sub_(p * log_q).sum(dim=-1)
    if kind == "kl":
        return kl, alpha, q - p
    weight = torch.exp(-ETA * alpha)
    gradient = (q - p).mul_(weight[:, None]).addcmul_(tv_gradient, 1 - weight[:, None])
    return weight * kl + (1 - weight) * (1 - alpha), alpha, gradient


class _HeadLoss(torch.autograd.Function):
    """Loss of hidden @ weight.T against target[rows], piece by piece; gradients are made in the forward pass."""

    @staticmethod
    def forward(ctx, kind, hidden, weight, target, rows, dtype):
        with_gradient = any(ctx.needs_input_grad)
        matrix = weight.detach().to(dtype)
        piece = max(1, LOGITS_AT_ONCE // weight.shape[0])
        losses, alphas, hidden_gradient = [], [], torch.empty_like(hidden)
        weight_gradient = torch.zeros_like(weight) if ctx.needs_input_grad[2] else None
        for start in range(0, hidden.shape[0], piece):
            part = slice(start, start + piece)
            states = hidden[part].detach().to(dtype)
            loss, alpha, gradient = loss_and_gradient(kind, (states @ matrix.t()).float(), target[rows[part]])
            losses.append(loss)
            alphas.append(alpha)
            if with_gradient:
                gradient = gradient.to(dtype)
                hidden_gradient[part] = (gradient @ matrix).to(hidden.dtype)
                if weight_gradient is not None:
                    weight_gradient += (gradient.t() @ states).to(weight.dtype)
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        alpha = torch.cat(alphas)
        ctx.mark_non_differentiable(alpha)
        return torch.cat(losses).sum(), alpha

    @staticmethod
    def backward(ctx, loss_gradient, _):
        hidden_gradient, weight_gradient = ctx.saved_tensors
        scaled = None if weight_gradient is None else weight_gradient * loss_gradient
        return None, hidden_gradient * loss_gradient, scaled, None, None, None


def head_loss(kind: LossKind, hidden: Float[Tensor, "positions hidden"], weight: Float[Tensor, "draft_vocab hidden"],
              target: Float32[Tensor, "contexts draft_vocab"], rows: Int[Tensor, " positions"],
              dtype: torch.dtype = torch.float32) -> tuple[Float32[Tensor, ""], Float32[Tensor, " positions"]]:
    """(sum of losses, alpha per position) of a linear head over normed hidden states, against target[rows].

    Products run in `dtype`; losses are float32. Memory holds one piece of logits, never all of them.
    """
    if hidden.shape[0] == 0:
        return hidden.sum() * 0 + weight.sum() * 0, hidden.new_zeros(0)
    return _HeadLoss.apply(kind, hidden, weight, target, rows, dtype)


def expected_acceptance_length(alpha: Float[Tensor, "positions drafts"]) -> Float[Tensor, " positions"]:
    """1 + sum over k of prod over i <= k of alpha_i: tokens per target forward for a chain of drafts, if the context
    of every draft were the true text."""
    return 1 + alpha.cumprod(dim=-1).sum(dim=-1)


def _negative_log(alpha: Tensor) -> Tensor:
    floored = alpha.clamp(min=ALPHA_FLOOR)
    return -torch.log(floored) + torch.relu(ALPHA_FLOOR - alpha) / ALPHA_FLOOR
