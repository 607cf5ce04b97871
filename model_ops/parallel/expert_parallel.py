"""Expert parallelism: every token travels to the processes that hold its experts, and its results travel back.

    forward = dispatched(original, experts)     # a drop-in for the forward of a layer's experts

Experts are stored one after another in the first dimension of their parameters (transformers' fused experts), cut over
ep and then over tp. Processes of an ep group hold different tokens: pairs of (token, expert) are exchanged all to all.
Processes of a tp group hold the same tokens: each takes the pairs of its own experts, and the sum over the group, which
the layer makes anyway, is the whole. The arithmetic of an expert is the model's own: its forward is called with the
tokens that arrived, one expert each, and weights of 1; the router's weights are applied where the tokens came from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from model_ops.parallel.collectives import exchange_rows


@dataclass(frozen=True, eq=False)
class ExpertShare:
    """Which experts this process holds: `count` of them, beginning at ep_rank's block and tp_rank's part of it."""

    group: dist.ProcessGroup | None
    ep_size: int
    tp_rank: int
    tp_size: int
    count: int


Experts = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(tokens, expert of each, weight of each) -> what the local experts make of them."""


def dispatch(
    experts: Experts, share: ExpertShare, hidden: Float[Tensor, "tokens width"],
    chosen: Int[Tensor, "tokens top_k"], weights: Float[Tensor, "tokens top_k"],
) -> Float[Tensor, "tokens width"]:
    """The weighted sum of each token's experts, those on this tp part only; on one tp process, of all of them."""
    block = share.count * share.tp_size  # experts of one ep process, over its whole tp group
    within = chosen % block
    mine = within // share.count == share.tp_rank
    token, slot = mine.nonzero(as_tuple=True)
    owner, local = chosen[token, slot] // block, within[token, slot] % share.count
    order = torch.argsort(owner * share.count + local, stable=True)
    token, slot, local = token[order], slot[order], local[order]
    key = owner[order] * share.count + local
    sent = torch.bincount(key, minlength=share.ep_size * share.count).view(share.ep_size, share.count)
    if share.group is None:
        made = _run(experts, hidden[token], local)
    else:
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=share.group)
        leaving, arriving = torch.stack((sent.sum(1), received.sum(1))).tolist()
        arrived = exchange_rows(hidden[token], leaving, arriving, share.group)
        which = torch.arange(share.count, device=hidden.device).repeat(share.ep_size)
        made = exchange_rows(_run(experts, arrived, which.repeat_interleave(received.flatten())), arriving, leaving,
                             share.group)
    made = made * weights[token, slot, None]
    return torch.zeros_like(hidden).index_add_(0, token, made.to(hidden.dtype))


def _run(experts: Experts, tokens: Float[Tensor, "rows width"], which: Int[Tensor, " rows"]) -> Tensor:
    if len(tokens) == 0:
        # Still a part of the graph: the backward pass of every process goes through the same collectives.
        return experts(tokens.new_zeros(1, tokens.shape[1]), which.new_zeros(1, 1), tokens.new_zeros(1, 1))[:0] + tokens
    return experts(tokens, which[:, None], tokens.new_ones(len(tokens), 1))
