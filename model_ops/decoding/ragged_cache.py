"""KV cache for rows of different lengths, with the attention that reads it.

cache = RaggedCache(layers=10, rows=64, kv_heads=2, head_dim=32, dtype=torch.float32, device="cpu")
cache.reserve(tokens)                                 # space for `tokens` more in every row
output = cache.attend(layer, query, key, value, cache.positions(tokens), window=None)
cache.lengths += accepted                             # makes new tokens visible; the next call overwrites the others"""

from collections.abc import Hashable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

ROOM_SHARE = 0.5
"""Most of the free memory that a batch's space takes before it is needed."""


class RaggedCache:
    """Keys and values by layer, [rows, kv_heads, capacity, head_dim], and the length of each row."""

    def __init__(
        self, layers: int, rows: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ):
        shape = (rows, kv_heads, 0, head_dim)
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self._most: int | None = 0
        self.longest = 0
        self.graphs: dict[Hashable, Any] = {}
        """A runner's CUDA graphs over these tensors; other tensors need others."""

    @property
    def lengths(self) -> Int[Tensor, " rows"]:
        """Tokens of each row that are visible. Assign to change them; do not write into the tensor."""
        return self._lengths

    @lengths.setter
    def lengths(self, lengths: Int[Tensor, " rows"]) -> None:
        self._lengths, self._most = lengths, None

    def advance(self, tokens: int) -> None:
        """Makes `tokens` more of every row visible."""
        most = self._most
        self.lengths = self.lengths + tokens
        self._most = None if most is None else most + tokens

    def longest_has(self, tokens: int) -> None:
        """Tells the length of the longest row, after the lengths were assigned."""
        self._most = tokens

    def most_tokens(self) -> int:
        """Length of the longest row; read from the device once after the lengths were assigned."""
        if self._most is None:
            self._most = int(self._lengths.max()) if self.rows else 0
        return self._most

    @property
    def rows(self) -> int:
        return self.lengths.shape[0]

    @property
    def capacity(self) -> int:
        return self.keys[0].shape[2]

    def reserve(self, tokens: int) -> None:
        """Allocates space for `tokens` beyond the longest row; grows by at least 50 %, so that copies are rare."""
        self.longest = self.most_tokens()
        needed = self.longest + tokens
        if needed > self.capacity:
            extra = max(needed, self.capacity * 3 // 2) - self.capacity
            self.graphs.clear()
            for layer in range(len(self.keys)):
                # zeros, not empty: a NaN in an invisible entry times its weight of 0 is NaN
                self.keys[layer] = F.pad(self.keys[layer], (0, 0, 0, extra))
                self.values[layer] = F.pad(self.values[layer], (0, 0, 0, extra))

    def hold_room(self, tokens: int, free: int) -> None:
        """Reserves a batch's space at once, because graphs need tensors that stay where they are, if that takes at most
        ROOM_SHARE of the `free` bytes. A cache that is not reserved grows."""
        rows, heads, capacity, width = self.keys[0].shape
        size = 2 * len(self.keys) * rows * heads * width * self.keys[0].itemsize
        if size * (self.most_tokens() + tokens - capacity) <= ROOM_SHARE * free:
            self.reserve(tokens)

    def positions(self, tokens: int) -> Int[Tensor, "rows tokens"]:
        """Positions of the next `tokens` tokens of each row."""
        return self.lengths[:, None] + torch.arange(tokens, device=self.lengths.device)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Keeps only these rows, in this order."""
        self.lengths = self.lengths[rows]
        used = self.most_tokens()
        self.graphs.clear()
        self.keys = [keys[rows, :, :used] for keys in self.keys]
        self.values = [values[rows, :, :used] for values in self.values]

    def store(
        self,
        layer: int,
        key: Float[Tensor, "rows tokens kv_heads head_dim"],
        value: Float[Tensor, "rows tokens kv_heads value_dim"],
        positions: Int[Tensor, "rows tokens"],
    ) -> None:
        """Writes keys and values at these positions; call `reserve` first."""
        rows = torch.arange(self.rows, device=positions.device)[:, None]
        self.keys[layer][rows, :, positions] = key
        self.values[layer][rows, :, positions] = value

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "rows tokens heads head_dim"],
        key: Float[Tensor, "rows tokens kv_heads head_dim"],
        value: Float[Tensor, "rows tokens kv_heads head_dim"],
        positions: Int[Tensor, "rows tokens"],
        window: int | None = None,
        causal: bool = True,
    ) -> Float[Tensor, "rows tokens heads_head_dim"]:
        """Stores the new keys and values, and attends over each row's past, causally by default. window: number of latest
        tokens that are visible (sliding-window attention); None: all. causal=False: every new token sees all new tokens. Call
        `reserve` after the lengths change and before this."""
        self.store(layer, key, value, positions)
        tokens = query.shape[1]
        if self.longest == 0 and causal and (window is None or tokens <= window):
            return _causal(query, key, value)
        span = self.longest + tokens
        seen = torch.arange(span, device=positions.device)
        visible = seen <= (positions if causal else positions[:, -1:].expand_as(positions))[:, :, None]
        if window is not None:
            visible &= seen > positions[:, :, None] - window
        return _grouped(query, self.keys[layer][:, :, :span], self.values[layer][:, :, :span], visible)


def _causal(query, key, value):
    """Causal attention of rows without a past; padding is on the right, which no real query sees."""
    output = F.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        is_causal=True,
        enable_gqa=query.shape[2] != key.shape[2],
    )
    return output.transpose(1, 2).flatten(2)


def _grouped(
    query: Float[Tensor, "rows tokens heads head_dim"],
    keys: Float[Tensor, "rows kv_heads span head_dim"],
    values: Float[Tensor, "rows kv_heads span head_dim"],
    visible: Bool[Tensor, "rows tokens span"],
) -> Float[Tensor, "rows tokens heads_head_dim"]:
    """Attention of few queries over a long past: query heads of one kv head share a product, without repeating keys."""
    rows, tokens, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    if query.dtype == torch.bfloat16 and query.device.type == "cpu":  # 1.2 to 4 times as fast as products
        output = F.scaled_dot_product_attention(
            query.transpose(1, 2), keys, values, attn_mask=visible[:, None], enable_gqa=heads != kv_heads
        )
        return output.transpose(1, 2).flatten(2)
    group = heads // kv_heads
    query = query.view(rows, tokens, kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
    scores = query.reshape(rows, kv_heads, group * tokens, head_dim) @ keys.transpose(2, 3)
    scores = (scores.float() * head_dim**-0.5).view(rows, kv_heads, group, tokens, -1)
    scores = scores.masked_fill_(~visible[:, None, None], float("-inf"))
    weights = scores.softmax(dim=-1).to(values.dtype).view(rows, kv_heads, group * tokens, -1)
    output = (weights @ values).view(rows, kv_heads, group, tokens, head_dim)
    return output.permute(0, 3, 1, 2, 4).reshape(rows, tokens, heads * head_dim)
