"""Losses of a drafter against its target, per position, in float32: KL, LK-lambda, LK-alpha, TV and cross-entropy.

    losses, alpha, gradient = loss_and_gradient("lk_lambda", draft_logits, rows)   # closed form, in place

target: the target's probabilities p of the draft vocabulary's tokens, from its softmax over the FULL vocabulary (they add
up to at most 1). q = softmax(draft_logits). With it alpha = sum min(p, q) is the exact probability that a draft is
accepted, and TV = 1 - alpha. KL is taken against p renormalised over the draft vocabulary; where p has no mass there at
all, there is nothing to renormalise and KL is 0. Cross-entropy is -log q(x) of the token x that the target generated;
where x is outside the draft vocabulary no draft can be right, and the position's loss and gradient are 0.

LK losses: Samarin et al. 2026, arXiv 2602.23881. LK-alpha = -log alpha. LK-lambda = lambda KL + (1 - lambda) TV with
lambda = exp(-eta alpha), alpha not differentiated; eta = 3 for EAGLE-3. lambda is each
position's own, or `kl_share`, one for all of them: exp(-eta mean alpha), which the trainer follows (`training_loss`).
Gradients with respect to the logits z, with A = {x: q(x) < p(x)} and Q_A = sum of q over A:
    dKL/dz = q - p;  dTV/dz = -q (1[A] - Q_A);  d(-log alpha)/dz = dTV/dz / alpha;  dCE/dz = q - 1[x]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

LossKind = Literal["kl", "lk_lambda", "lk_alpha", "tv", "cross_entropy"]

ETA = 3.0
ALPHA_FLOOR = 1e-5
"""Below this alpha, -log alpha is continued by its tangent, so that its gradient is bounded."""

MASS_FLOOR = 1e-30
"""Below this mass of p in the draft vocabulary, float32 cannot renormalise it, and it counts as 0."""

OUTSIDE = -1
"""Label of a token outside the draft vocabulary."""


@dataclass(frozen=True)
class TargetRows:
    """The target's probabilities at some positions: p over the draft vocabulary, its sum, and sum p log p."""

    probabilities: Float[Tensor, "positions draft_vocab"]
    mass: Float[Tensor, "positions 1"]
    log_mean: Float[Tensor, "positions 1"]
    labels: Int[Tensor, " positions"] | None = None

    @classmethod
    def of(cls, target: Float[Tensor, "positions draft_vocab"], labels: Int[Tensor, " positions"] | None = None) -> TargetRows:
        """From probabilities, which are not changed."""
        target = _exact(target)
        return cls(target, target.sum(-1, keepdim=True), torch.xlogy(target, target).sum(-1, keepdim=True), labels)

    def __getitem__(self, rows: slice | Tensor) -> TargetRows:
        return TargetRows(
            self.probabilities[rows], self.mass[rows], self.log_mean[rows], None if self.labels is None else self.labels[rows]
        )


def loss_and_gradient(
    kind: LossKind,
    draft_logits: Float[Tensor, "positions draft_vocab"],
    target: TargetRows,
    eta: float = ETA,
    scale: float | Float[Tensor, "positions 1"] = 1.0,
    gradient_wanted: bool = True,
    kl_share: float | None = None,
) -> tuple[Float[Tensor, " positions"], Float[Tensor, " positions"], Tensor | None]:
    """(loss, alpha, scale * d loss / d draft_logits) by the closed forms above; draft_logits are overwritten. All gradients
    have the form c_q q + c_p p + c_A q 1[A], minus 1 at the label for cross-entropy, which needs few passes over the
    vocabulary."""
    p, z = target.probabilities, draft_logits
    highest = z.amax(-1, keepdim=True)
    q = z.softmax(-1)
    normaliser = highest - q.amax(-1, keepdim=True).log()
    c_p = c_a = None
    if kind in ("kl", "lk_lambda"):
        known = target.mass.clamp(min=MASS_FLOOR)
        crossed = torch.linalg.vecdot(p, z)[:, None] - target.mass * normaliser  # sum p log q
        kl = (target.log_mean - crossed) / known - target.mass / known * known.log()
        of_q, of_p = target.mass / known, -1 / known
    elif kind == "cross_entropy":
        labels = _needed(target.labels)[:, None]
        inside_vocabulary = (labels != OUTSIDE).to(z.dtype)
        loss = (normaliser - z.gather(1, labels.clamp(min=0))) * inside_vocabulary
        c_q = inside_vocabulary
    buffer = torch.minimum(p, q, out=z)
    alpha = buffer.sum(-1, keepdim=True)
    if kind in ("tv", "lk_alpha", "lk_lambda"):
        in_a = torch.lt(q, p, out=buffer).mul_(q)  # q if it is below p, else 0
        mass_a = in_a.sum(-1, keepdim=True)
    match kind:
        case "kl":
            loss, c_q, c_p = kl, of_q, of_p
        case "tv":
            loss, c_q, c_a = 1 - alpha, mass_a, -torch.ones_like(alpha)
        case "lk_alpha":
            floored = alpha.clamp(min=ALPHA_FLOOR)
            loss, c_q, c_a = _negative_log(alpha), mass_a / floored, -1 / floored
        case "lk_lambda":
            weight = torch.exp(-eta * alpha) if kl_share is None else torch.full_like(alpha, kl_share)
            loss = weight * kl + (1 - weight) * (1 - alpha)
            c_q, c_p, c_a = weight * of_q + (1 - weight) * mass_a, weight * of_p, weight - 1
    if not gradient_wanted:
        return loss[:, 0], alpha[:, 0], None
    gradient = q.mul_(c_q * scale)
    if c_p is not None:
        gradient.addcmul_(p, c_p * scale)
    if c_a is not None:
        gradient.addcmul_(in_a, c_a * scale)
    if kind == "cross_entropy":
        gradient.scatter_add_(1, labels.clamp(min=0), -scale * inside_vocabulary)
    return loss[:, 0], alpha[:, 0], gradient


def expected_acceptance_length(alpha: Float[Tensor, "*positions drafts"]) -> Float[Tensor, "*positions"]:
    """1 + sum over k of prod over i <= k of alpha_i: tokens per target forward for a chain of drafts, if the context
    of every draft were the true text."""
    return 1 + alpha.cumprod(dim=-1).sum(dim=-1)


def _negative_log(alpha: Tensor) -> Tensor:
    floored = alpha.clamp(min=ALPHA_FLOOR)
    return -torch.log(floored) + torch.relu(ALPHA_FLOOR - alpha) / ALPHA_FLOOR


def _needed(labels: Tensor | None) -> Tensor:
    if labels is None:
        raise ValueError("cross_entropy needs labels: the tokens that the target generated")
    return labels


def _exact(values: Tensor) -> Tensor:
    """The values in float32, or unchanged in float64 for checks by finite differences."""
    return values if values.dtype == torch.float64 else values.float()
