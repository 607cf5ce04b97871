"""Sampling and verification as pure functions: what makes drafting exact.

    token = sample(probabilities, uniform)                                   # inverse CDF: one uniform, one token
    accepted, token = verify_matches(choices, drafts, valid)                 # greedy, or a drafter that proposes surely
    accepted, token = verify_draws(target, draft_probabilities, ...)         # a drafter that samples

Rejection rule (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318): a token x drafted with
probability q(x) is accepted with probability min(1, p(x) / q(x)); at the first rejection a token is drawn from
max(p - q, 0), normalised. What is emitted is distributed exactly as if the target had sampled alone.
A drafter that proposes x surely (q(x) = 1) leads to the same as drawing y from p and accepting iff y = x.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float32, Int
from torch import Tensor

from model_ops.decoding.truncation import NONE, Truncation, truncated

DRAFT, ACCEPT, FINAL = 0, 1, 2
"""Which uniform of a position serves what: drawing the draft, the acceptance test, the target's own token."""


def row_uniforms(row_ids: Sequence[str], positions: int, seed: int) -> Float32[Tensor, "rows positions 3"]:
    """Uniforms in [0, 1) for each row's answer positions: a function of seed and row id alone, so a row's answer does
    not depend on its neighbours in a batch or on their order.

    A position's uniforms may be used again after a rejection: whatever they led to was then discarded for reasons
    that did not look at them.
    """
    rows = []
    for row_id in row_ids:
        digest = hashlib.sha256(f"{seed}:{row_id}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        rows.append(torch.rand(positions, 3, generator=generator))
    return torch.stack(rows) if rows else torch.empty(0, positions, 3)


def sample(weights: Float32[Tensor, "*rows vocab"], uniform: Float32[Tensor, "*rows"]) -> Int[Tensor, "*rows"]:
    """One index per row, drawn in proportion to its weights (which need not add up to 1), by inverse CDF."""
    cumulative = weights.cumsum(dim=-1)
    threshold = uniform.unsqueeze(-1) * cumulative[..., -1:]
    index = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
    if (index >= weights.shape[-1]).any():
        # u * total rounded up to the total: the last index that has any weight
        last = weights.shape[-1] - 1 - (weights > 0).flip(-1).to(torch.uint8).argmax(dim=-1)
        index = torch.minimum(index, last)
    return index


def choose(logits: Float32[Tensor, "*rows vocab"], temperature: float, uniform: Float32[Tensor, "*rows"],
           truncation: Truncation = NONE) -> Int[Tensor, "*rows"]:
    """The target's own token: its argmax at temperature 0, else a draw from what the truncation leaves."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    return sample(truncated((logits / temperature).softmax(dim=-1), truncation), uniform)


def verify_matches(choices: Int[Tensor, "rows drafts+1"], drafts: Int[Tensor, "rows drafts"],
                   valid: Bool[Tensor, "rows drafts"]) -> tuple[Int[Tensor, " rows"], Int[Tensor, " rows"]]:
    """Accepts drafts as long as they equal the target's choice; returns (how many, the target's token after them)."""
    matches = (choices[:, :-1] == drafts) & valid
    accepted = matches.to(torch.int64).cumprod(dim=1).sum(dim=1)
    return accepted, choices.gather(1, accepted[:, None]).squeeze(1)


def verify_draws(target: Float32[Tensor, "rows drafts+1 vocab"], drafts: Int[Tensor, "rows drafts"],
                 proposed: Float32[Tensor, "rows drafts draft_vocab"], target_ids: Int[Tensor, " draft_vocab"],
                 draft_index: Int[Tensor, "rows drafts"], accept: Float32[Tensor, "rows drafts"],
                 final: Float32[Tensor, "rows drafts+1"]) -> tuple[Int[Tensor, " rows"], Int[Tensor, " rows"]]:
    """Standard rejection sampling; returns (accepted per row, the token that follows them).

    target: p at each position; proposed: q over the draft vocabulary, whose entry i is the target's token
    target_ids[i]; draft_index: the drafts as draft-vocabulary indices; accept, final: uniforms.
    """
    rows, count = drafts.shape
    p = target[:, :-1].gather(2, drafts[:, :, None]).squeeze(2)
    q = proposed.gather(2, draft_index[:, :, None]).squeeze(2)
    passed = accept * q < p
    accepted = passed.to(torch.int64).cumprod(dim=1).sum(dim=1)
    each = torch.arange(rows, device=target.device)
    residual = target[each, accepted].clone()
    rejected = accepted < count
    if rejected.any():
        where = each[rejected]
        taken = proposed[where, accepted[rejected]]
        lowered = residual[where]
        lowered[:, target_ids] = (lowered[:, target_ids] - taken).clamp_(min=0)
        # p = q up to rounding leaves nothing to draw from; then any draw from p is a right one
        empty = lowered.sum(dim=-1, keepdim=True) <= 0
        residual[where] = torch.where(empty, residual[where], lowered)
    return accepted, sample(residual, final[each, accepted])
