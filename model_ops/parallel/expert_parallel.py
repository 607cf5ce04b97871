"""Expert parallelism: sends every token to the processes with its experts, and the results back.

Processes of an ep group have different tokens and exchange pairs of (token, expert) with all-to-all; processes of a tp group
have the same tokens, and the layer's sum over the group adds up what each one's experts give. The model's own forward computes
the experts, with one expert and weight 1 per received token; the router's weights are applied after the results have returned.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from model_ops.parallel.collectives import exchange_rows


@dataclass(frozen=True, eq=False)
class ExpertShare:
    """The experts of this process: `count` experts, the part tp_rank of the block of ep_rank."""

    group: dist.ProcessGroup | None
    ep_size: int
    tp_rank: int
    tp_size: int
    count: int


Experts = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(tokens, expert of each token, weight of each token) -> outputs of the local experts."""


def dispatch(
    experts: Experts,
    share: ExpertShare,
    hidden: Float[Tensor, "tokens width"],
    chosen: Int[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
) -> Float[Tensor, "tokens width"]:
    """The weighted sum over each token's experts. With tp, only over the experts of this tp process."""
    block = share.count * share.tp_size  # experts of one ep process, over its whole tp group
    within = chosen % block
    mine = within // share.count == share.tp_rank
    token, slot = mine.nonzero(as_tuple=True)
    owner, local = chosen[token, slot] // block, within[token, slot] % share.count
    order = torch.argsort(owner * share.count + local, stable=True)
    token, slot, local = token[order], slot[order], local[order]
    key = owner[order] * share.count + local
    numbers = torch.arange(share.ep_size * share.count, device=key.device)
    ends = torch.searchsorted(key, numbers, right=True)  # bincount would wait for a device
    sent = ends.diff(prepend=ends.new_zeros(1)).view(share.ep_size, share.count)
    if share.group is None:
        outputs = _run(experts, hidden[token], local)
    else:
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=share.group)
        leaving, arriving = torch.stack((sent.sum(1), received.sum(1))).tolist()
        arrived = exchange_rows(hidden[token], leaving, arriving, share.group)
        which = torch.arange(share.count, device=hidden.device).repeat(share.ep_size)
        outputs = exchange_rows(
            _run(experts, arrived, which.repeat_interleave(received.flatten())), arriving, leaving, share.group
        )
    outputs = outputs * weights[token, slot, None]
    return torch.zeros_like(hidden).index_add_(0, token, outputs.to(hidden.dtype))


def _run(experts: Experts, tokens: Float[Tensor, "rows width"], which: Int[Tensor, " rows"]) -> Tensor:
    if len(tokens) == 0:
        # stays in the autograd graph, so that the backward pass of every process runs the same collectives
        return experts(tokens.new_zeros(1, tokens.shape[1]), which.new_zeros(1, 1), tokens.new_zeros(1, 1))[:0] + tokens
    return experts(tokens, which[:, None], tokens.new_ones(len(tokens), 1))
