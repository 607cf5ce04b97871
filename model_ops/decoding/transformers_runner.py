"""Runners that decode with a transformers model's own forward. `RaggedModel` puts attention over a ragged cache into it.
`StatefulModel` is for families with a linear recurrence or a convolution: a row whose drafts are taken back continues from a
copy of its cache, and after a row's first tokens the model gets one token at a time."""

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache

from model_ops.decoding.incremental import FINAL
from model_ops.decoding.ragged_cache import RaggedCache
from model_ops.jobs import ModelError
from model_ops.losses import Head
from model_ops.models import packed_attention

FINAL_NORMS = ("norm", "embedding_norm", "final_layernorm")
"""Names of the final norm in transformers' decoders."""

LENGTH_DEPENDENT = ("dynamic", "longrope")
"""RoPE types whose frequencies change when a row grows past its original length: rows are kept below it, where cached keys stay
valid."""


class TransformersRunner:
    """A causal language model of transformers. Raises ModelError if its blocks, final norm or head are not found."""

    def __init__(self, model: nn.Module):
        self.model, self.config = model, model.config
        self.decoder = model.get_decoder()
        layers, head = getattr(self.decoder, "layers", None), Head.of(model)
        norm = next((getattr(self.decoder, name) for name in FINAL_NORMS if hasattr(self.decoder, name)), None)
        if layers is None or norm is None or head is None:
            missing = "layers" if layers is None else "a final norm" if norm is None else "a linear head"
            raise ModelError(f"{self.config.model_type} cannot be decoded here: its decoder has no {missing} of a known name")
        self.layers, self.norm = layers, norm
        self.embedding = model.get_input_embeddings().weight
        self.dtype, self.device = self.embedding.dtype, self.embedding.device
        self.head, self.soft_cap = _scaled(model.get_output_embeddings(), head.scale), head.soft_cap
        self.final_norm = _factor(self.norm, self.config.hidden_size, self.dtype, self.device)
        self.max_positions = max_positions(self.config)

    def take_back(self, cache: Any) -> None:
        """Caches are made anew for each batch."""

    @torch.no_grad()
    def logits(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens vocab"]:
        """Logits in float32."""
        logits = self.head(hidden).float()
        return logits if self.soft_cap is None else logits.div_(self.soft_cap).tanh_().mul_(self.soft_cap)

    @torch.no_grad()
    def run(self, capture: Sequence[int], **inputs: Any) -> tuple[Tensor, Tensor | None]:
        """The decoder's last hidden states, and the captured states."""
        seen: dict[int, Tensor] = {}

        def keep(place: int, module: nn.Module, given: tuple, named: dict) -> None:
            seen[place] = given[0] if given else named["hidden_states"]

        with ExitStack() as hooks:
            for place in {place for place in capture if place != FINAL}:
                module = self.norm if place == len(self.layers) else self.layers[place]
                handle = module.register_forward_pre_hook(partial(keep, place), with_kwargs=True)
                hooks.callback(handle.remove)
            seen[FINAL] = self.decoder(**inputs).last_hidden_state
        return seen[FINAL], torch.cat([seen[place] for place in capture], dim=-1) if capture else None


def max_positions(config: Any) -> int:
    """Longest row in tokens: the config's, or the original length of a RoPE that changes beyond it."""
    rope = getattr(config, "rope_parameters", None) or {}
    by_layer = [part for part in rope.values() if isinstance(part, dict)]
    longest = config.max_position_embeddings
    for part in by_layer or [rope]:
        if part.get("rope_type") in LENGTH_DEPENDENT:
            original = part.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
            longest = min(longest, original or longest)
    return longest


def _scaled(linear: nn.Module, scale: float) -> nn.Module:
    """The head with its scale in its weight, so that whoever reads the weight gets the model's logits."""
    if scale == 1.0:
        return linear
    scaled = nn.Linear(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
    with torch.no_grad():
        for name in ("weight", "bias"):
            if getattr(linear, name) is not None:
                setattr(scaled, name, nn.Parameter(getattr(linear, name) * scale, requires_grad=False))
    return scaled


@torch.no_grad()
def _factor(norm: nn.Module, width: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " hidden"]:
    """Factors of the final norm: its output for alternating signs, whose mean is 0 and size 1 in every norm (Gemma's
    factor is 1 + weight)."""
    signs = torch.ones(width, dtype=dtype, device=device)
    signs[1::2] = -1.0
    return norm(signs[None, None])[0, 0] * signs


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

    def forward(
        self, ids: Int[Tensor, "rows tokens"], cache: LayerCache, capture: Sequence[int] = ()
    ) -> tuple[Float[Tensor, "rows tokens hidden"], Float[Tensor, "rows tokens captured_hidden"] | None]:
        """Hidden states after the final norm of the next tokens of every row, and the captured states (None without any). The
        tokens are stored in the cache; they become visible when the caller adds to `cache.lengths`."""
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
    past. Without a cache, causal attention of each row on its own."""
    cache = ragged_cache
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    alone = partial(packed_attention, scaling=scaling, sliding_window=sliding_window, softcap=softcap, s_aux=s_aux)
    if cache is None:
        return alone(module, query, key, value)
    tokens, layer = query.shape[2], module.layer_idx
    positions = cache.positions(tokens)
    cache.store(layer, key.transpose(1, 2), value.transpose(1, 2), positions)
    if cache.longest == 0:  # rows without a past; padding is on the right, which no real query sees
        return alone(module, query, key, value)
    span = cache.longest + tokens
    keys, values = cache.keys[layer][:, :, :span], cache.values[layer][:, :, :span]
    at_once = max(1, SCORES_AT_ONCE.get(query.device.type, SCORES_AT_ONCE["cpu"]) // (query.shape[1] * tokens * span))
    attend = partial(_attend, window=sliding_window, scaling=scaling, softcap=softcap, s_aux=s_aux)
    streams = (stream.split(at_once) for stream in (query, keys, values, positions))
    parts = [attend(*part) for part in zip(*streams, strict=True)]
    return torch.cat(parts).transpose(1, 2), None


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Int[Tensor, "rows tokens"],
    window: int | None,
    scaling: float,
    softcap: float | None,
    s_aux: Tensor | None,
) -> Float[Tensor, "rows heads tokens value_dim"]:
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


@dataclass
class _Row:
    """A row's tokens and the cache after all of them."""

    tokens: list[int] = field(default_factory=list)
    cache: Any = None
    before: tuple[int, Any] | None = None
    """(number of tokens, cache) before the last drafts, or None."""


class StateCache:
    """One transformers cache for each row."""

    def __init__(self, rows: int, device: torch.device | str):
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.rows = [_Row() for _ in range(rows)]

    def advance(self, tokens: int) -> None:
        """Makes `tokens` more of every row visible."""
        self.lengths = self.lengths + tokens

    def longest_has(self, tokens: int) -> None:
        """Every row has its own cache: nothing depends on the longest."""

    def hold_room(self, tokens: int, free: int) -> None:
        """transformers' caches grow by themselves."""

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Keeps only these rows, in this order."""
        self.lengths = self.lengths[rows]
        self.rows = [self.rows[row] for row in rows.tolist()]


class StatefulModel(TransformersRunner):
    """A causal language model over transformers' own caches."""

    def new_cache(self, rows: int) -> StateCache:
        """An empty cache for `rows` rows."""
        return StateCache(rows, self.device)

    def forward(
        self, ids: Int[Tensor, "rows tokens"], cache: StateCache, capture: Sequence[int] = ()
    ) -> tuple[Float[Tensor, "rows tokens hidden"], Float[Tensor, "rows tokens captured_hidden"] | None]:
        """Hidden states after the final norm of the next tokens of every row, and the captured states (None without any). The
        tokens become part of a row when the caller adds to `cache.lengths`."""
        by_row = [
            self._row(row, tokens, length, capture)
            for row, tokens, length in zip(cache.rows, ids.tolist(), cache.lengths.tolist(), strict=True)
        ]
        hidden = torch.cat([states for states, _ in by_row])
        return hidden, torch.cat([captured for _, captured in by_row]) if capture else None

    def _row(self, row: _Row, new: list[int], length: int, capture: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """The states of a row's new tokens, after its first `length` tokens."""
        self._rewind(row, length)
        if length and len(new) > 1:
            row.before = (length, copy.deepcopy(row.cache))
        steps = self._read(row, new, capture)
        return torch.cat([states for states, _ in steps], 1), torch.cat([of for _, of in steps], 1) if capture else None

    def _rewind(self, row: _Row, length: int) -> None:
        """Brings the cache to the row's first `length` tokens."""
        if length == len(row.tokens):
            return
        remaining = row.tokens[:length]
        row.tokens, row.cache = [], None
        if row.before is not None and row.before[0] <= length:
            row.tokens, row.cache = remaining[: row.before[0]], row.before[1]
        row.before = None
        if len(row.tokens) < length:
            self._read(row, remaining[len(row.tokens) :], ())

    def _read(self, row: _Row, tokens: list[int], capture: Sequence[int]) -> list[tuple[Tensor, Tensor | None]]:
        """Runs a row's next tokens: the first ones at once, later ones one by one."""
        if row.cache is None:
            row.cache = DynamicCache(config=self.config)
            steps = [tokens]
        else:
            steps = [[token] for token in tokens]
        outputs = []
        for step in steps:
            positions = torch.arange(len(row.tokens), len(row.tokens) + len(step), device=self.device)[None]
            outputs.append(
                self.run(
                    capture,
                    input_ids=torch.tensor([step], device=self.device),
                    position_ids=positions,
                    past_key_values=row.cache,
                    use_cache=True,
                )
            )
            row.tokens.extend(step)
        return outputs
