"""Runs a Hugging Face decoder over a ragged KV cache: prefill, decoding, verification of drafts.

    runner = IncrementalModel(model)                      # Llama, Mistral, Qwen2, Qwen3; float or quantized layers
    hidden, captured = runner.forward(ids, runner.new_cache(rows=64), capture=(2, 5, 7))
    logits = runner.logits(hidden[:, -1])

It shares the model's weights; q, k, v and gate, up become views of one fused matrix. `captured` holds states at block
boundaries: k is the input of block k, n the last block's output before the final norm, FINAL the state after it. On CUDA, a
shape's second forward is recorded as a CUDA graph."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from model_ops.decoding.ragged_cache import RaggedCache
from model_ops.families import FAST
from model_ops.jobs import ModelError
from model_ops.quantization import QuantizedLinear

FINAL = -1
"""Value in `capture` for the state after the final norm; 0 to n are block boundaries."""

STATIC_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""RoPE types whose frequencies do not depend on the sequence, so that one table serves all rows."""


class RotaryTable:
    """cos and sin of RoPE by position; grows on demand."""

    def __init__(self, rotary: nn.Module, dtype: torch.dtype):
        self.rotary, self.dtype = rotary, dtype
        self.cos = self.sin = torch.empty(0, 0)

    def at(self, positions: Int[Tensor, "*tokens"], longest: int):
        """(cos, sin), each [*tokens, 1, head_dim]; `longest` bounds the positions."""
        if longest > self.cos.shape[0]:
            places = torch.arange(max(longest, 2 * self.cos.shape[0], 256), device=positions.device)[None]
            cos, sin = self.rotary(torch.empty(0, dtype=torch.float32, device=positions.device), places)
            self.cos, self.sin = cos[0].to(self.dtype), sin[0].to(self.dtype)
        return self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2)


def rotate(heads: Float[Tensor, "*tokens heads head_dim"], cos: Tensor, sin: Tensor) -> Tensor:
    """Applies RoPE in the convention of Llama and Qwen (rotate_half)."""
    left, right = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-right, left), dim=-1) * sin


def fuse(layers: Sequence[nn.Module]) -> nn.Module:
    """Fuses linear (or quantized) layers with the same input into one layer; the originals become views of it."""
    first = layers[0]
    if isinstance(first, QuantizedLinear):
        return type(first).fused(layers)
    sizes = [layer.out_features for layer in layers]
    fused = nn.Linear(first.in_features, sum(sizes), bias=first.bias is not None, device="meta").requires_grad_(False)
    for name in ("weight", "bias"):
        if getattr(first, name) is None:
            continue
        with torch.no_grad():
            whole = torch.cat([getattr(layer, name).data for layer in layers])
        for layer, part in zip(layers, whole.split(sizes), strict=True):
            getattr(layer, name).data = part
        setattr(fused, name, nn.Parameter(whole, requires_grad=False))
    return fused


GRAPHED_TOKENS = 16
"""Most tokens of a row in a forward that is recorded: one, or drafts with the token before them."""
SPAN = 256
"""A graph attends over a multiple of so many entries of the cache: rows grow, a graph does not."""


class ForwardGraph:
    """A forward over fixed tensors, recorded on CUDA: the results of a call are overwritten by the next one. held: tensors
    whose addresses are recorded and that another may replace, such as a table that grows."""

    def __init__(self, work: Callable[[Tensor, Tensor], Any], ids: Tensor, positions: Tensor, held: Sequence[Tensor]):
        self.ids, self.positions, self.graph = ids.clone(), positions.clone(), torch.cuda.CUDAGraph()
        self.held = tuple(held)
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # other threads may use the device meanwhile
            self.results = work(self.ids, self.positions)

    def __call__(self, ids: Tensor, positions: Tensor) -> Any:
        self.ids.copy_(ids)
        self.positions.copy_(positions)
        self.graph.replay()
        return self.results


@dataclass
class _Block:
    input_norm: Tensor
    qkv: nn.Module
    head_norm: Tensor | None
    output: nn.Module
    mlp_norm: Tensor
    gate_up: nn.Module
    down: nn.Module
    window: int | None


def runs_fast(config: Any) -> bool:
    """Whether `IncrementalModel` computes a model of this config."""
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config.model_type in FAST
        and rope.get("rope_type", "default") in STATIC_ROPE_TYPES
        and config.hidden_act in ("silu", "swish")
    )


class IncrementalModel:
    """A causal language model over a ragged cache. Raises ModelError for an architecture without fused products."""

    soft_cap: float | None = None

    def __init__(self, model: nn.Module):
        config = model.config
        if not runs_fast(config):
            raise ModelError(
                f"fused decoding supports {', '.join(FAST)} with silu and the RoPE types "
                f"{', '.join(STATIC_ROPE_TYPES)}, not this {config.model_type}; use new_runner"
            )
        inner = model.model
        self.max_positions = config.max_position_embeddings
        self.config = config
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.epsilon = config.rms_norm_eps
        self.embedding = inner.embed_tokens.weight
        self.dtype, self.device = self.embedding.dtype, self.embedding.device
        self.final_norm = inner.norm.weight
        self.head = model.lm_head
        self.rotary = RotaryTable(inner.rotary_emb, self.dtype)
        self.blocks = [self._block(layer, index) for index, layer in enumerate(inner.layers)]
        self.graphed = self.device.type == "cuda"
        self._spare: RaggedCache | None = None

    def _block(self, layer: nn.Module, index: int) -> _Block:
        attention, mlp = layer.self_attn, layer.mlp
        head_norm = None
        if hasattr(attention, "q_norm"):
            head_norm = torch.cat(
                (attention.q_norm.weight.data.expand(self.heads, -1), attention.k_norm.weight.data.expand(self.kv_heads, -1))
            )
        kinds = getattr(self.config, "layer_types", None)
        window = getattr(self.config, "sliding_window", None) if self.config.model_type != "llama" else None  # it has none
        if kinds is not None and kinds[index] == "full_attention":
            window = None
        return _Block(
            layer.input_layernorm.weight,
            fuse([attention.q_proj, attention.k_proj, attention.v_proj]),
            head_norm,
            attention.o_proj,
            layer.post_attention_layernorm.weight,
            fuse([mlp.gate_proj, mlp.up_proj]),
            mlp.down_proj,
            window,
        )

    def new_cache(self, rows: int) -> RaggedCache:
        """An empty cache for `rows` rows."""
        cache, self._spare = self._spare, None
        if cache is not None and cache.rows == rows:
            cache.lengths = torch.zeros_like(cache.lengths)
            cache.longest_has(0)
            return cache
        return RaggedCache(len(self.blocks), rows, self.kv_heads, self.head_dim, self.dtype, self.device)

    def take_back(self, cache: RaggedCache) -> None:
        """Takes a cache that nobody reads any more: the next batch of as many rows gets it with its graphs."""
        if self.graphed:
            self._spare = cache

    def norm(self, hidden: Float[Tensor, "*tokens hidden"], weight: Float[Tensor, " hidden"]) -> Tensor:
        return F.rms_norm(hidden, (weight.shape[-1],), weight, self.epsilon)

    @torch.no_grad()
    def forward(
        self, ids: Int[Tensor, "rows tokens"], cache: RaggedCache, capture: Sequence[int] = ()
    ) -> tuple[Float[Tensor, "rows tokens hidden"], Float[Tensor, "rows tokens captured_hidden"] | None]:
        """Hidden states after the final norm of the next tokens of every row, and the captured states (None without any). The
        tokens are stored in the cache; they become visible when the caller adds to `cache.lengths`."""
        tokens = ids.shape[1]
        cache.reserve(tokens)
        positions, longest = cache.positions(tokens), cache.longest
        if not self.graphed or longest == 0 or tokens > GRAPHED_TOKENS:
            return self._compute(ids, positions, cache, capture, longest + tokens)
        span = min(cache.capacity, -(-(longest + tokens) // SPAN) * SPAN)
        key = (tokens, span, tuple(capture))

        def work(ids: Tensor, positions: Tensor) -> Any:
            cache.longest = span - tokens
            return self._compute(ids, positions, cache, capture, span)

        if key not in cache.graphs:  # computed once before it is recorded: libraries allocate at their first call
            cache.graphs[key] = None
            return work(ids, positions)
        if cache.graphs[key] is None:
            held = (self.rotary.cos, self.rotary.sin, *cache.keys, *cache.values)
            try:
                cache.graphs[key] = ForwardGraph(work, ids, positions, held)
            except RuntimeError as error:  # an operation that waits for the device, or a driver that records nothing
                warnings.warn(f"decoding is not recorded on {self.device}: {error}", stacklevel=2)
                self.graphed, cache.longest = False, longest
                return self._compute(ids, positions, cache, capture, longest + tokens)
        final, captured = cache.graphs[key](ids, positions)
        return final, captured

    def _compute(
        self, ids: Tensor, positions: Tensor, cache: RaggedCache, capture: Sequence[int], span: int
    ) -> tuple[Tensor, Tensor | None]:
        cos, sin = self.rotary.at(positions, span)
        hidden = F.embedding(ids, self.embedding)
        boundaries = {}
        for index, block in enumerate(self.blocks):
            if index in capture:
                boundaries[index] = hidden
            hidden = self._run_block(block, index, hidden, cache, positions, cos, sin)
        if len(self.blocks) in capture:
            boundaries[len(self.blocks)] = hidden
        final = boundaries[FINAL] = self.norm(hidden, self.final_norm)
        return final, torch.cat([boundaries[index] for index in capture], dim=-1) if capture else None

    def _run_block(self, block: _Block, index: int, hidden, cache, positions, cos, sin):
        rows, tokens, _ = hidden.shape
        heads = block.qkv(self.norm(hidden, block.input_norm)).view(rows, tokens, -1, self.head_dim)
        rotated, value = heads.split((self.heads + self.kv_heads, self.kv_heads), dim=2)
        if block.head_norm is not None:
            rotated = F.rms_norm(rotated, (self.head_dim,), None, self.epsilon) * block.head_norm
        query, key = rotate(rotated, cos, sin).split((self.heads, self.kv_heads), dim=2)
        attended = cache.attend(index, query, key, value, positions, block.window)
        hidden = hidden + block.output(attended)
        gate, up = block.gate_up(self.norm(hidden, block.mlp_norm)).chunk(2, dim=-1)
        return hidden + block.down(F.silu(gate) * up)

    @torch.no_grad()
    def logits(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens vocab"]:
        """Logits in float32."""
        return self.head(hidden).float()
