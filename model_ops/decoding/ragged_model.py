"""Decodes any transformers model in which attention is all that connects tokens: its own blocks, attention over a ragged cache.

    runner = RaggedModel(model)          # `model_ops.decoding.runner` chooses it

The model runs as in training, with transformers' attention interface, so norms, experts, soft caps, sinks, windows, latent
attention and RoPE are the model's own code. Rows of different lengths share a batch, and drafts are taken back by the lengths
of the cache, as with `IncrementalModel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface

from model_ops.decoding.ragged_cache import RaggedCache
from model_ops.decoding.transformers_runner import TransformersRunner
from model_ops.models.attention import packed_attention

SCORES_AT_ONCE = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Most float32 scores of one product, by kind of device: 64 MiB or 1 GiB."""


class LayerCache(RaggedCache):
    """A ragged cache whose layers get their heads and widths from the first keys and values that they store."""

    def __init__(self, layers: int, rows: int, dtype: torch.dtype, device: torch.device | str):
        super().__init__(layers, rows, 0, 0, dtype, device)
        self.room = 0

    @property
    def capacity(self) -> int:
        return self.room

    def reserve(self, tokens: int) -> None:
        self.longest = self.most_tokens()
        needed = self.longest + tokens
        if needed > self.room:
            self.room = max(needed, self.room * 3 // 2)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        super().keep(rows)
        self.room = self.most_tokens()

    def store(self, layer: int, key: Tensor, value: Tensor, positions: Int[Tensor, "rows tokens"]) -> None:
        for held, new in ((self.keys, key), (self.values, value)):
            if held[layer].shape[2] < self.room:
                past = held[layer] if held[layer].shape[1] else new.new_empty(self.rows, new.shape[2], 0, new.shape[3])
                # zeros, not empty: a NaN in an invisible entry times its weight of 0 is NaN
                held[layer] = F.pad(past, (0, 0, 0, self.room - past.shape[2]))
        super().store(layer, key, value, positions)


class RaggedModel(TransformersRunner):
    """A causal language model over a ragged cache, by its own forward. Sets the model's attention."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        model.set_attn_implementation("ragged")

    def new_cache(self, rows: int) -> LayerCache:
        """An empty cache for `rows` rows."""
        return LayerCache(len(self.layers), rows, self.dtype, self.device)

    def forward(self, ids: Int[Tensor, "rows tokens"], cache: LayerCache, capture: Sequence[int] = (),
                ) -> tuple[Float[Tensor, "rows tokens hidden"], Float[Tensor, "rows tokens captured*hidden"] | None]:
        """Hidden states after the final norm of the next tokens of every row, and the captured states (None without any).

        The tokens are stored in the cache; they become visible when the caller adds to `cache.lengths`.
        """
        cache.reserve(ids.shape[1])
        return self.run(capture, input_ids=ids, position_ids=cache.positions(ids.shape[1]), use_cache=False, ragged_cache=cache)


def ragged_attention(
    module: nn.Module,
    query: Float[Tensor, "rows heads tokens head_dim"],
    key: Float[Tensor, "rows kv_heads tokens head_dim"],
    value: Float[Tensor, "rows kv_heads tokens value_dim"],
    attention_mask: Tensor | None = None,
    *,
    ragged_cache: LayerCache | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, " heads"] | None = None,
    **_: object,
) -> tuple[Float[Tensor, "rows tokens heads value_dim"], None]:
    """Attention with the signature of transformers' interface: stores the new keys and values, and attends over each row's
    past.

    Without a cache, causal attention of each row on its own.
    """
    cache = ragged_cache
    options = {"scaling": query.shape[-1] ** -0.5 if scaling is None else scaling, "softcap": softcap, "s_aux": s_aux}
    if cache is None:
        return packed_attention(module, query, key, value, sliding_window=sliding_window, **options)
    tokens, layer = query.shape[2], module.layer_idx
    positions = cache.positions(tokens)
    cache.store(layer, key.transpose(1, 2), value.transpose(1, 2), positions)
    if cache.longest == 0:  # rows without a past; padding is on the right, which no real query sees
        return packed_attention(module, query, key, value, sliding_window=sliding_window, **options)
    span = cache.longest + tokens
    keys, values = cache.keys[layer][:, :, :span], cache.values[layer][:, :, :span]
    at_once = max(1, SCORES_AT_ONCE.get(query.device.type, SCORES_AT_ONCE["cpu"]) // (query.shape[1] * tokens * span))
    attend = partial(_attend, window=sliding_window, **options)
    streams = (stream.split(at_once) for stream in (query, keys, values, positions))
    parts = [attend(*part) for part in zip(*streams, strict=True)]
    return torch.cat(parts).transpose(1, 2), None


def _attend(query: Tensor, keys: Tensor, values: Tensor, positions: Int[Tensor, "rows tokens"], window: int | None,
            scaling: float, softcap: float | None, s_aux: Tensor | None) -> Float[Tensor, "rows heads tokens value_dim"]:
    rows, heads, tokens, head_dim = query.shape
    kv_heads, span = keys.shape[1], keys.shape[2]
    scores = query.reshape(rows, kv_heads, heads // kv_heads * tokens, head_dim) @ keys.transpose(2, 3)
    scores = scores.float().mul_(scaling).view(rows, heads, tokens, span)
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    seen = torch.arange(span, device=positions.device)
    visible = seen <= positions[:, :, None]
    if window is not None:
        visible &= seen > positions[:, :, None] - window
    scores.masked_fill_(~visible[:, None], float("-inf"))
    if s_aux is not None:  # one more logit in the softmax, without a value
        sinks = s_aux.float().view(1, heads, 1, 1).expand(rows, -1, tokens, 1)
        weights = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    weights = weights.to(values.dtype).view(rows, kv_heads, -1, span)
    return (weights @ values).view(rows, heads, tokens, -1)


AttentionInterface.register("ragged", ragged_attention)
