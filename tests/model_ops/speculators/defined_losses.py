"""The losses of drafters by their definitions, differentiable: what the closed forms are compared with.

Logits of the drafter and probabilities of the target are [*positions, draft vocabulary]; each loss is [*positions].
"""

import torch

from model_ops.speculators.losses.speculator_losses import ETA, MASS_FLOOR, OUTSIDE, _exact, _needed, _negative_log


def acceptance(logits, target):
    """alpha = sum min(p, q): the probability that standard rejection sampling accepts a draft from q."""
    return torch.minimum(_exact(logits).softmax(dim=-1), _exact(target)).sum(dim=-1)


def kl_loss(logits, target):
    """KL(p || q) with p renormalised over the draft vocabulary; 0 if p has no mass there."""
    target = _exact(target)
    p = target / target.sum(dim=-1, keepdim=True).clamp(min=MASS_FLOOR)
    return (torch.xlogy(p, p) - p * _exact(logits).log_softmax(dim=-1)).sum(dim=-1)


def tv_loss(logits, target):
    """Total variation distance over the full vocabulary, 1 - alpha."""
    return 1 - acceptance(logits, target)


def lk_alpha_loss(logits, target):
    return _negative_log(acceptance(logits, target))


def lk_lambda_loss(logits, target, eta=ETA, kl_share=None):
    """lambda KL + (1 - lambda) TV, lambda = kl_share, or each position's exp(-eta alpha), which is not differentiated."""
    alpha = acceptance(logits, target)
    weight = torch.exp(-eta * alpha.detach()) if kl_share is None else kl_share
    return weight * kl_loss(logits, target) + (1 - weight) * (1 - alpha)


def cross_entropy_loss(logits, labels):
    """-log q of the label, a draft id; 0 for the label OUTSIDE."""
    chosen = _exact(logits).log_softmax(dim=-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return torch.where(labels == OUTSIDE, 0, -chosen)


def speculator_loss(kind, logits, target, labels=None, eta=ETA, kl_share=None):
    """labels (draft ids or OUTSIDE) are for cross_entropy, eta and kl_share for lk_lambda."""
    if kind == "cross_entropy":
        return cross_entropy_loss(logits, _needed(labels))
    if kind == "lk_lambda":
        return lk_lambda_loss(logits, target, eta, kl_share)
    return {"kl": kl_loss, "tv": tv_loss, "lk_alpha": lk_alpha_loss}[kind](logits, target)
