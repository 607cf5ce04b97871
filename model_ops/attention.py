"""Attention for packed rows: each document attends only to itself, at the cost of the sum of its lengths squared.

    model = load_model(directory, attention="packed")
    model(input_ids[None], position_ids=position_ids[None], use_cache=False, document_lengths=[120, 64, 200])

transformers derives packing from position ids by building a tokens x tokens mask; here the documents are gathered into
a few groups of similar length instead, and each group is one causal scaled-dot-product attention (padding lies after a
document's end, where causal attention never looks). Without `document_lengths` each batch row is one document.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface

PADDING_ALLOWED = 1.25
"""A group's longest document may be this many times its shortest."""


def packed_attention(
    module: nn.Module,
    query: Float[Tensor, "batch heads tokens head_dim"],
    key: Float[Tensor, "batch kv_heads tokens head_dim"],
    value: Float[Tensor, "batch kv_heads tokens head_dim"],
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    document_lengths: list[int] | None = None,
    **_: object,
) -> tuple[Float[Tensor, "batch tokens heads head_dim"], None]:
    """transformers' attention signature. Raises ValueError when it is asked for what it cannot do exactly."""
    if attention_mask is not None:
        raise ValueError("packed attention takes no attention_mask; load the model with attention='sdpa' for that")
    if key.shape[2] != query.shape[2]:
        raise ValueError("packed attention takes no cache; load the model with attention='sdpa' to decode")
    batch, heads, tokens, head_dim = query.shape
    lengths = [tokens] if document_lengths is None else list(document_lengths)
    if document_lengths is not None and batch != 1:
        raise ValueError("document_lengths describe one packed row; the batch must be 1")
    if sum(lengths) != tokens:
        raise ValueError(f"document_lengths add up to {sum(lengths)}, the row has {tokens} tokens")
    if sliding_window is not None and max(lengths) > sliding_window:
        raise ValueError(f"packed attention has no sliding window; keep documents within {sliding_window} tokens")
    repeats = heads // key.shape[1]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if repeats > 1:
            k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, dropout_p=dropout)

    if len(lengths) == 1:
        return attend(query, key, value).transpose(1, 2), None
    q, k, v = (stream[0].transpose(0, 1) for stream in (query, key, value))  # [tokens, heads, head_dim]
    groups, inverse = _groups(tuple(lengths), query.device)
    outputs = []
    for where, kept in groups:  # where: [documents, longest] token indices, the padding repeating the last one
        grouped = (stream[where].transpose(1, 2) for stream in (q, k, v))
        out = attend(*grouped).transpose(1, 2)  # [documents, longest, heads, head_dim]
        outputs.append(out.reshape(-1, heads, head_dim)[kept])
    return torch.cat(outputs)[inverse][None], None


@lru_cache(maxsize=8)
def _groups(lengths: tuple[int, ...], device: torch.device) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Documents of similar length together: index tables into the row, and the order that undoes them."""
    starts, total = [], 0
    for length in lengths:
        starts.append(total)
        total += length
    order = sorted(range(len(lengths)), key=lambda d: (lengths[d], d))
    members: list[list[int]] = []
    for document in order:
        if members and lengths[document] <= lengths[members[-1][0]] * PADDING_ALLOWED:
            members[-1].append(document)
        else:
            members.append([document])
    groups, taken = [], []
    for group in members:
        longest = lengths[group[-1]]
        within = torch.arange(longest)[None]
        length = torch.tensor([lengths[d] for d in group])[:, None]
        start = torch.tensor([starts[d] for d in group])[:, None]
        where = start + torch.minimum(within, length - 1)
        kept = (within < length).reshape(-1).nonzero()[:, 0]
        taken.append(where.reshape(-1)[kept])
        groups.append((where.to(device), kept.to(device)))
    return groups, torch.argsort(torch.cat(taken)).to(device)


AttentionInterface.register("packed", packed_attention)
