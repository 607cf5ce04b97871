"""The losses of drafters by their definitions, differentiable: what the closed forms are compared with."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from model_ops.speculators.losses.speculator_losses import ETA, MASS_FLOOR, OUTSIDE, LossKind, _exact, _needed, _negative_log


def acceptance(
    draft_logits: Float[Tensor, "*positions draft_vocab"], target: Float[Tensor, "*positions draft_vocab"]
) -> Float[Tensor, "*positions"]:
    """alpha = sum min(p, q): the probability that standard rejection sampling accepts a draft from q."""
    return torch.minimum(_exact(draft_logits).softmax(dim=-1), _exact(target)).sum(dim=-1)


def kl_loss(
    draft_logits: Float[Tensor, "*positions draft_vocab"], target: Float[Tensor, "*positions draft_vocab"]
) -> Float[Tensor, "*positions"]:
    """KL(p || q) with p renormalised over the draft vocabulary; 0 if p has no mass there."""
    target = _exact(target)
    p = target / target.sum(dim=-1, keepdim=True).clamp(min=MASS_FLOOR)
    return (torch.xlogy(p, p) - p * _exact(draft_logits).log_softmax(dim=-1)).sum(dim=-1)


def tv_loss(
    draft_logits: Float[Tensor, "*positions draft_vocab"], target: Float[Tensor, "*positions draft_vocab"]
) -> Float[Tensor, "*positions"]:
    """Total variation distance over the full vocabulary, 1 - alpha."""
    return 1 - acceptance(draft_logits, target)


def lk_alpha_loss(
    draft_logits: Float[Tensor, "*positions draft_vocab"], target: Float[Tensor, "*positions draft_vocab"]
) -> Float[Tensor, "*positions"]:
    """-log alpha."""
    return _negative_log(acceptance(draft_logits, target))


def lk_lambda_loss(
    draft_logits: Float[Tensor, "*positions draft_vocab"],
    target: Float[Tensor, "*positions draft_vocab"],
    eta: float = ETA,
    kl_share: float | None = None,
) -> Float[Tensor, "*positions"]:
    """lambda KL + (1 - lambda) TV, lambda = kl_share, or each position's exp(-eta alpha): KL while p and q are far apart, TV
    when they are close."""
    alpha = acceptance(draft_logits, target)
    weight = torch.exp(-eta * alpha.detach()) if kl_share is None else kl_share
    return weight * kl_loss(draft_logits, target) + (1 - weight) * (1 - alpha)


def cross_entropy_loss(
    draft_logits: Float[Tensor, "*positions draft_vocab"], labels: Int[Tensor, "*positions"]
) -> Float[Tensor, "*positions"]:
    """-log q of the label, a draft id; 0 for the label OUTSIDE."""
    chosen = _exact(draft_logits).log_softmax(dim=-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return torch.where(labels == OUTSIDE, 0, -chosen)


def speculator_loss(
    kind: LossKind,
    draft_logits: Float[Tensor, "*positions draft_vocab"],
    target: Float[Tensor, "*positions draft_vocab"],
    labels: Int[Tensor, "*positions"] | None = None,
    eta: float = ETA,
    kl_share: float | None = None,
) -> Float[Tensor, "*positions"]:
    """The loss by its definition. labels (draft ids or OUTSIDE) are for cross_entropy, eta and kl_share for lk_lambda. Raises
    ValueError for an unknown loss."""
    match kind:
        case "kl":
            return kl_loss(draft_logits, target)
        case "tv":
            return tv_loss(draft_logits, target)
        case "lk_alpha":
            return lk_alpha_loss(draft_logits, target)
        case "lk_lambda":
            return lk_lambda_loss(draft_logits, target, eta, kl_share)
        case "cross_entropy":
            return cross_entropy_loss(draft_logits, _needed(labels))
    raise ValueError(f"unknown loss {kind!r} of a drafter")
