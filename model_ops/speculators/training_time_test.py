"""The training-time test of EAGLE-3: several draft steps in training, each fed the layer's own output.

    hidden = unroll(drafter, batch_of_documents, steps=4)         # one [documents, window, hidden] per step

Step k at index j is fed the true token x[j+1+k] and the layer's own output of step k-1 at j (not detached), stands at
rotary position j + k, and predicts x[j+2+k]. It attends to every step-0 entry i <= j of its document and to exactly
one entry of each later step, its own at j: the sequence a server sees after k drafts (arXiv 2503.01840, section 3.2).

Only the window of an answer needs outputs: entries of the prompt give keys and values and nothing else, so queries, MLP
and logits are computed inside the window alone. Memory of attention is linear in document length: queries are taken in
blocks that are computed again in the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from model_ops.speculators.eagle3 import Eagle3

SCORES_AT_ONCE = 1 << 24
"""Attention scores held at a time (64 MiB in float32); more are computed block by block."""


@dataclass(frozen=True)
class Documents:
    """Documents padded on the right to one length, and the window of each that is supervised at step 0.

    ids: tokens x[0..]; captured: the target's boundary states; start: index j of each window's first entry;
    window: entries in the longest window; final: the target's state after its final norm at every entry. A window's
    entry a stands at j = start + a.
    """

    ids: Int[Tensor, "documents tokens"]
    captured: Float[Tensor, "documents tokens captured*hidden"]
    start: Int[Tensor, " documents"]
    window: int
    final: Float[Tensor, "documents window hidden"] | None = None


def unroll(model: Eagle3, documents: Documents, steps: int) -> list[Float[Tensor, "documents window hidden"]]:
    """The layer's outputs (before the final norm) of every step, inside the window."""
    ids, start = documents.ids, documents.start
    tokens, attention = ids.shape[1], model.midlayer.self_attn
    within = torch.arange(documents.window, device=ids.device)
    index = (start[:, None] + within).clamp(max=tokens - 1)
    fused = model.fuse(documents.captured.to(model.fc.weight.dtype))
    places = torch.arange(tokens + steps, device=ids.device)[None]
    cos, sin = (table[0].to(fused.dtype)[:, None] for table in model.rotary(fused.float(), places))

    following = torch.cat((ids[:, 1:], ids[:, -1:]), dim=1)
    x = model.attention_input(model.embed_tokens(following), fused)
    keys, values = attention.key_value(x, cos[:tokens], sin[:tokens])
    hidden = _take(fused, index)
    query = attention.query(_take(x, index), cos[index], sin[index])
    outputs, later = [model.finish(hidden, attend(query, keys, values, [], index))], []
    for step in range(1, steps):
        fed = ids.gather(1, (index + 1 + step).clamp(max=tokens - 1))
        hidden = model.fed_back(outputs[-1])
        x = model.attention_input(model.embed_tokens(fed), hidden)
        moved = index + step
        later.append(attention.key_value(x, cos[moved], sin[moved]))
        query = attention.query(x, cos[moved], sin[moved])
        outputs.append(model.finish(hidden, attend(query, keys, values, later, index)))
    return outputs


def attend(query: Float[Tensor, "documents window heads head_dim"],
           keys: Float[Tensor, "documents tokens kv_heads head_dim"],
           values: Float[Tensor, "documents tokens kv_heads head_dim"], later: list[tuple[Tensor, Tensor]],
           index: Int[Tensor, "documents window"]) -> Float[Tensor, "documents window heads*head_dim"]:
    """Two-part attention under one softmax: step-0 entries up to index, and one entry of each later step.

    later holds (keys, values) of steps 1, 2, ..., each [documents, window, kv_heads, head_dim].
    """
    documents, window, heads, _ = query.shape
    per_query = documents * heads * keys.shape[1]
    block = max(1, SCORES_AT_ONCE // per_query)
    if block >= window:
        return _attend_block(query, keys, values, later, index)
    pieces = []
    for begin in range(0, window, block):
        part = slice(begin, begin + block)
        arguments = (query[:, part], keys, values, [(k[:, part], v[:, part]) for k, v in later], index[:, part])
        pieces.append(checkpoint(_attend_block, *arguments, use_reentrant=False))
    return torch.cat(pieces, dim=1)


def _attend_block(query, keys, values, later, index):
    documents, window, heads, head_dim = query.shape
    tokens, kv_heads = keys.shape[1:3]
    grouped = query.unflatten(2, (kv_heads, -1)) * head_dim**-0.5  # [documents, window, kv_heads, group, head_dim]
    rows = grouped.permute(0, 2, 3, 1, 4).reshape(documents, kv_heads, -1, head_dim)
    scores = (rows @ keys.permute(0, 2, 3, 1)).float().view(documents, kv_heads, -1, window, tokens)
    unseen = torch.arange(tokens, device=index.device) > index[:, :, None]
    scores = scores.masked_fill(unseen[:, None, None], float("-inf"))
    own = [(grouped * k[:, :, :, None]).sum(-1).float().permute(0, 2, 3, 1) for k, _ in later]
    weights = torch.cat((scores, *(score[..., None] for score in own)), dim=-1).softmax(dim=-1).to(values.dtype)
    past = weights[..., :tokens].reshape(documents, kv_heads, -1, tokens) @ values.transpose(1, 2)
    output = past.view(documents, kv_heads, -1, window, head_dim)
    for place, (_, value) in enumerate(later):
        output = output + weights[..., tokens + place, None] * value.permute(0, 2, 1, 3)[:, :, None]
    return output.permute(0, 3, 1, 2, 4).reshape(documents, window, heads * head_dim)


def _take(stream: Float[Tensor, "documents tokens width"], index: Int[Tensor, "documents window"]) -> Tensor:
    return stream.gather(1, index[:, :, None].expand(-1, -1, stream.shape[-1]))
