"""Truncated sampling: top-k, top-p and min-p, in the order in which vLLM applies them. Importing it imports no torch.

    weights = truncated((logits / temperature).softmax(dim=-1), Truncation(top_p=0.9))     # for sampling.sample

After the temperature, min_p drops tokens below min_p times the highest probability; top_k keeps the k most probable tokens;
top_p keeps the smallest set of most probable tokens whose share of the remaining probability reaches top_p.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Float32
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
