"""Sampling, its truncation, and verification of drafts (speculative sampling), as pure functions.

Truncation in vLLM's order, after the temperature: min_p drops tokens below min_p times the highest probability; top_k keeps the
k most probable tokens; top_p the smallest set of most probable tokens whose share of the remaining probability reaches top_p.

Rejection rule (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318): a token x drafted with
probability q(x) is accepted with probability min(1, p(x) / q(x)); at the first rejection a token is drawn from
max(p - q, 0), normalised. The emitted tokens have exactly the target's distribution."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float32, Int
from torch import Tensor


@dataclass(frozen=True)
class Truncation:
    """Options of truncated sampling; top_p 1, top_k 0 and min_p 0 change nothing."""

    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The options that differ from their neutral value."""
        return {name: value for name, value in asdict(self).items() if value != getattr(NONE, name)}


NONE = Truncation()


def truncated(probabilities: Float32[Tensor, "*rows vocab"], truncation: Truncation) -> Float32[Tensor, "*rows vocab"]:
    """The probabilities with excluded tokens set to 0, not normalised. All tokens that tie for the k-th place stay."""
    allowed = probabilities
    if truncation.min_p > 0:
        allowed = allowed.where(allowed >= truncation.min_p * allowed.amax(dim=-1, keepdim=True), 0)
    if 0 < truncation.top_k < allowed.shape[-1]:
        allowed = allowed.where(allowed >= allowed.topk(truncation.top_k, dim=-1).values[..., -1:], 0)
    if truncation.top_p < 1:
        ordered, places = allowed.sort(dim=-1, descending=True, stable=True)
        # a token stays while the tokens before it have not reached the share
        before = ordered.cumsum(dim=-1) - ordered
        ordered = ordered.where(before < truncation.top_p * allowed.sum(dim=-1, keepdim=True), 0)
        allowed = allowed.new_zeros(allowed.shape).scatter_(-1, places, ordered)
    return allowed


DRAFT, ACCEPT, FINAL = 0, 1, 2
"""Index of a position's uniform number for drawing the draft, for the acceptance test, and for the target's own token."""


def row_uniforms(row_ids: Sequence[str], positions: int, seed: int) -> Float32[Tensor, "rows positions 3"]:
    """Uniform numbers in [0, 1) for each row's answer positions: a function of seed and row id, so that a row's answer does not
    depend on the other rows of its batch or on their order. The numbers of a position may be used again after a rejection,
    because the rejection did not depend on them."""
    rows = []
    for row_id in row_ids:
        digest = hashlib.sha256(f"{seed}:{row_id}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        rows.append(torch.rand(positions, 3, generator=generator))
    return torch.stack(rows) if rows else torch.empty(0, positions, 3)


def sample(weights: Float32[Tensor, "*rows vocab"], uniform: Float32[Tensor, "*rows"]) -> Int[Tensor, "*rows"]:
    """Draws one index per row in proportion to the weights, which need not sum to 1, by inverse CDF."""
    cumulative = weights.cumsum(dim=-1)
    threshold = uniform.unsqueeze(-1) * cumulative[..., -1:]
    index = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
    # u * total can round up to the total: then take the last index with a weight. Looking first would wait for a device.
    if weights.device.type != "cpu" or (index >= weights.shape[-1]).any():
        last = weights.shape[-1] - 1 - (weights > 0).flip(-1).to(torch.uint8).argmax(dim=-1)
        index = torch.minimum(index, last)
    return index


def choose(
    logits: Float32[Tensor, "*rows vocab"], temperature: float, uniform: Float32[Tensor, "*rows"], truncation: Truncation = NONE
) -> Int[Tensor, "*rows"]:
    """The target's own token: its argmax at temperature 0, else a sample after truncation."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    return sample(truncated((logits / temperature).softmax(dim=-1), truncation), uniform)


def verify_matches(
    choices: Int[Tensor, "rows drafts+1"], drafts: Int[Tensor, "rows drafts"], valid: Bool[Tensor, "rows drafts"]
) -> tuple[Int[Tensor, " rows"], Int[Tensor, " rows"]]:
    """Accepts drafts while they equal the target's choice; returns (number accepted, the target's token after them)."""
    matches = (choices[:, :-1] == drafts) & valid
    accepted = matches.to(torch.int64).cumprod(dim=1).sum(dim=1)
    return accepted, choices.gather(1, accepted[:, None]).squeeze(1)


def verify_draws(
    target: Float32[Tensor, "rows drafts+1 vocab"],
    drafts: Int[Tensor, "rows drafts"],
    proposed: Float32[Tensor, "rows drafts draft_vocab"],
    target_ids: Int[Tensor, " draft_vocab"],
    draft_index: Int[Tensor, "rows drafts"],
    accept: Float32[Tensor, "rows drafts"],
    final: Float32[Tensor, "rows drafts+1"],
) -> tuple[Int[Tensor, " rows"], Int[Tensor, " rows"]]:
    """Verifies sampled drafts by rejection sampling; returns (number accepted per row, the token after them). target: p at each
    position; proposed: q over the draft vocabulary, whose entry i is the target's token target_ids[i]; draft_index: the drafts
    as draft-vocabulary indices; accept, final: uniforms."""
    rows, count = drafts.shape
    p = target[:, :-1].gather(2, drafts[:, :, None]).squeeze(2)
    q = proposed.gather(2, draft_index[:, :, None]).squeeze(2)
    passed = accept * q < p
    accepted = passed.to(torch.int64).cumprod(dim=1).sum(dim=1)
    each = torch.arange(rows, device=target.device)
    own = target[each, accepted]
    lowered = own.clone()
    lowered[:, target_ids] = (lowered[:, target_ids] - proposed[each, accepted.clamp(max=count - 1)]).clamp_(min=0)
    # nothing was rejected, or p = q up to rounding leaves no residual; then any draw from p is correct
    whole = (accepted == count)[:, None] | (lowered.sum(dim=-1, keepdim=True) <= 0)
    return accepted, sample(torch.where(whole, own, lowered), final[each, accepted])
